package nvmltest

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// maxMIGDevices is the number of MIG devices that a GPU may have.
const maxMIGDevices = 7

// instances are the MIG instances of a Server, with the rules that go-nvml's mocks lack: placements do not overlap, an instance in
// use cannot be destroyed, and each compute instance is a device.
type instances struct {
	server *server.Server

	mu      sync.Mutex
	devices []*migDevice
}

// migDevice is a compute instance as a device.
type migDevice struct {
	*mock.Device
	gpu      *server.Device
	gi, ci   uint32
	instance *server.ComputeInstance
	uuid     string
}

// find returns the MIG device with this UUID, or nil.
func (m *instances) find(uuid string) gonvml.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, device := range m.devices {
		if device.uuid == uuid {
			return device
		}
	}
	return nil
}

// of returns the MIG devices of a GPU, in the order of their instances.
func (m *instances) of(gpu *server.Device) []*migDevice {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*migDevice
	for _, device := range m.devices {
		if device.gpu == gpu {
			found = append(found, device)
		}
	}
	slices.SortFunc(found, func(a, b *migDevice) int { return cmp.Or(cmp.Compare(a.gi, b.gi), cmp.Compare(a.ci, b.ci)) })
	return found
}

// complete adds the functions for MIG to a GPU.
func (m *instances) complete(gpu *server.Device) {
	create := gpu.CreateGpuInstanceWithPlacementFunc
	gpu.CreateGpuInstanceWithPlacementFunc = func(
		profile *gonvml.GpuInstanceProfileInfo, place *gonvml.GpuInstancePlacement,
	) (gonvml.GpuInstance, gonvml.Return) {
		if !migEnabled(gpu) {
			return nil, gonvml.ERROR_NOT_SUPPORTED
		}
		if !slices.Contains(freePlaces(gpu, profile), *place) {
			return nil, gonvml.ERROR_INSUFFICIENT_RESOURCES
		}
		instance, ret := create(profile, place)
		if ret == gonvml.SUCCESS {
			m.completeGPUInstance(gpu, instance.(*server.GpuInstance), *profile)
		}
		return instance, ret
	}
	gpu.CreateGpuInstanceFunc = func(profile *gonvml.GpuInstanceProfileInfo) (gonvml.GpuInstance, gonvml.Return) {
		free := freePlaces(gpu, profile)
		if len(free) == 0 {
			return nil, gonvml.ERROR_INSUFFICIENT_RESOURCES
		}
		return gpu.CreateGpuInstanceWithPlacement(profile, &free[0])
	}
	gpu.GetGpuInstanceRemainingCapacityFunc = func(profile *gonvml.GpuInstanceProfileInfo) (int, gonvml.Return) {
		return remainingCapacity(gpu, profile), gonvml.SUCCESS
	}
	gpu.GetGpuInstanceByIdFunc = func(id int) (gonvml.GpuInstance, gonvml.Return) {
		for _, instance := range gpuInstances(gpu) {
			if int(instance.Info.Id) == id {
				return instance, gonvml.SUCCESS
			}
		}
		return nil, gonvml.ERROR_NOT_FOUND
	}
	m.completeMode(gpu)
	m.completeDevices(gpu)
}

// completeMode refuses to turn MIG off while there are instances, and hides the values that a GPU in MIG mode does not report.
func (m *instances) completeMode(gpu *server.Device) {
	set := gpu.SetMigModeFunc
	gpu.SetMigModeFunc = func(mode int) (gonvml.Return, gonvml.Return) {
		if mode == gonvml.DEVICE_MIG_DISABLE && len(gpuInstances(gpu)) > 0 {
			return gonvml.ERROR_IN_USE, gonvml.ERROR_IN_USE
		}
		return set(mode)
	}
	rows, rates := gpu.GetRemappedRowsFunc, gpu.GetUtilizationRatesFunc
	gpu.GetRemappedRowsFunc = func() (int, int, bool, bool, gonvml.Return) {
		if migEnabled(gpu) {
			return 0, 0, false, false, gonvml.ERROR_NOT_SUPPORTED
		}
		return rows()
	}
	gpu.GetUtilizationRatesFunc = func() (gonvml.Utilization, gonvml.Return) {
		if migEnabled(gpu) {
			return gonvml.Utilization{}, gonvml.ERROR_NOT_SUPPORTED
		}
		return rates()
	}
}

// completeDevices adds the functions that list a GPU's MIG devices.
func (m *instances) completeDevices(gpu *server.Device) {
	gpu.GetMaxMigDeviceCountFunc = func() (int, gonvml.Return) {
		if !migEnabled(gpu) {
			return 0, gonvml.SUCCESS
		}
		return maxMIGDevices, gonvml.SUCCESS
	}
	gpu.GetMigDeviceHandleByIndexFunc = func(index int) (gonvml.Device, gonvml.Return) {
		devices := m.of(gpu)
		if index < 0 || index >= len(devices) {
			return nil, gonvml.ERROR_NOT_FOUND
		}
		return devices[index], gonvml.SUCCESS
	}
}

func migEnabled(gpu *server.Device) bool {
	mode, _, _ := gpu.GetMigMode()
	return mode == gonvml.DEVICE_MIG_ENABLE
}

// gpuInstances returns the GPU instances of a GPU.
func gpuInstances(gpu *server.Device) []*server.GpuInstance {
	gpu.RLock()
	defer gpu.RUnlock()
	all := make([]*server.GpuInstance, 0, len(gpu.GpuInstances))
	for instance := range gpu.GpuInstances {
		all = append(all, instance)
	}
	return all
}

// freePlaces returns the placements at which an instance of a profile can be created now.
func freePlaces(gpu *server.Device, profile *gonvml.GpuInstanceProfileInfo) []gonvml.GpuInstancePlacement {
	if remainingOf(gpu, profile) == 0 {
		return nil
	}
	places, _ := gpu.GetGpuInstancePossiblePlacements(profile)
	return slices.DeleteFunc(slices.Clone(places), func(place gonvml.GpuInstancePlacement) bool {
		return slices.ContainsFunc(gpuInstances(gpu), func(instance *server.GpuInstance) bool {
			taken := instance.Info.Placement
			return place.Start < taken.Start+taken.Size && taken.Start < place.Start+place.Size
		})
	})
}

// remainingOf returns how many more instances of a profile the GPU may have, whatever their placement.
func remainingOf(gpu *server.Device, profile *gonvml.GpuInstanceProfileInfo) int {
	left := int(profile.InstanceCount)
	for _, instance := range gpuInstances(gpu) {
		if instance.Info.ProfileId == profile.Id {
			left--
		}
	}
	return max(left, 0)
}

// remainingCapacity returns how many more instances of a profile fit on the GPU.
func remainingCapacity(gpu *server.Device, profile *gonvml.GpuInstanceProfileInfo) int {
	fit, end := 0, uint32(0)
	free := freePlaces(gpu, profile)
	slices.SortFunc(free, func(a, b gonvml.GpuInstancePlacement) int { return cmp.Compare(a.Start, b.Start) })
	for _, place := range free {
		if place.Start >= end {
			fit, end = fit+1, place.Start+place.Size
		}
	}
	return min(fit, remainingOf(gpu, profile))
}

// completeGPUInstance has a GPU instance create devices, and refuse to be destroyed while it has any.
func (m *instances) completeGPUInstance(gpu *server.Device, gi *server.GpuInstance, profile gonvml.GpuInstanceProfileInfo) {
	create, destroy := gi.CreateComputeInstanceFunc, gi.DestroyFunc
	gi.CreateComputeInstanceFunc = func(info *gonvml.ComputeInstanceProfileInfo) (gonvml.ComputeInstance, gonvml.Return) {
		instance, ret := create(info)
		if ret == gonvml.SUCCESS {
			m.add(gpu, gi, instance.(*server.ComputeInstance), profile, *info)
		}
		return instance, ret
	}
	gi.CreateComputeInstanceWithPlacementFunc = func(
		info *gonvml.ComputeInstanceProfileInfo, place *gonvml.ComputeInstancePlacement,
	) (gonvml.ComputeInstance, gonvml.Return) {
		instance, ret := gi.CreateComputeInstance(info)
		if ret == gonvml.SUCCESS {
			instance.(*server.ComputeInstance).Info.Placement = *place
		}
		return instance, ret
	}
	gi.GetComputeInstanceByIdFunc = func(id int) (gonvml.ComputeInstance, gonvml.Return) {
		for _, device := range m.of(gpu) {
			if device.gi == gi.Info.Id && int(device.ci) == id {
				return device.instance, gonvml.SUCCESS
			}
		}
		return nil, gonvml.ERROR_NOT_FOUND
	}
	gi.DestroyFunc = func() gonvml.Return {
		if slices.ContainsFunc(m.of(gpu), func(device *migDevice) bool { return device.gi == gi.Info.Id }) {
			return gonvml.ERROR_IN_USE
		}
		return destroy()
	}
}

// add creates the device of a compute instance.
func (m *instances) add(
	gpu *server.Device, gi *server.GpuInstance, ci *server.ComputeInstance,
	profile gonvml.GpuInstanceProfileInfo, info gonvml.ComputeInstanceProfileInfo,
) {
	device := &migDevice{
		Device: migHandle(gpu, gi, profile, info), gpu: gpu, gi: gi.Info.Id, ci: ci.Info.Id, instance: ci,
		// As with the driver, the same instance of the same GPU has the same UUID.
		uuid: migUUID(gpu.UUID, gi.Info.Id, ci.Info.Id),
	}
	device.GetUUIDFunc = func() (string, gonvml.Return) { return device.uuid, gonvml.SUCCESS }
	device.GetComputeInstanceIdFunc = func() (int, gonvml.Return) { return int(device.ci), gonvml.SUCCESS }
	ci.Info.Device = device
	destroy := ci.DestroyFunc
	ci.DestroyFunc = func() gonvml.Return {
		m.mu.Lock()
		m.devices = slices.DeleteFunc(m.devices, func(other *migDevice) bool { return other == device })
		m.mu.Unlock()
		return destroy()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = append(m.devices, device)
}

func migUUID(gpu string, gi, ci uint32) string {
	hash := fnv.New128a()
	fmt.Fprintf(hash, "%s/%d/%d", gpu, gi, ci)
	sum := hash.Sum(nil)
	return fmt.Sprintf("MIG-%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:])
}

// migHandle returns the answers of a MIG device. Only the whole GPU reports power, clocks and the like.
func migHandle(
	gpu *server.Device, gi *server.GpuInstance, profile gonvml.GpuInstanceProfileInfo, info gonvml.ComputeInstanceProfileInfo,
) *mock.Device {
	attributes := gonvml.DeviceAttributes{
		MultiprocessorCount: cmp.Or(info.MultiprocessorCount, profile.MultiprocessorCount), MemorySizeMB: profile.MemorySizeMB,
		GpuInstanceSliceCount: profile.SliceCount, ComputeInstanceSliceCount: info.SliceCount,
		SharedCopyEngineCount: profile.CopyEngineCount, SharedDecoderCount: profile.DecoderCount,
		SharedEncoderCount: profile.EncoderCount, SharedJpegCount: profile.JpegCount, SharedOfaCount: profile.OfaCount,
	}
	name := gpu.Config.Name + " MIG " + profileName(gpu, profile)
	bytes := profile.MemorySizeMB << 20
	return &mock.Device{
		GetNameFunc:                            func() (string, gonvml.Return) { return name, gonvml.SUCCESS },
		GetAttributesFunc:                      func() (gonvml.DeviceAttributes, gonvml.Return) { return attributes, gonvml.SUCCESS },
		GetGpuInstanceIdFunc:                   func() (int, gonvml.Return) { return int(gi.Info.Id), gonvml.SUCCESS },
		IsMigDeviceHandleFunc:                  func() (bool, gonvml.Return) { return true, gonvml.SUCCESS },
		GetPciInfoFunc:                         gpu.GetPciInfo,
		GetCudaComputeCapabilityFunc:           gpu.GetCudaComputeCapability,
		GetArchitectureFunc:                    gpu.GetArchitecture,
		GetBrandFunc:                           gpu.GetBrand,
		GetMinorNumberFunc:                     func() (int, gonvml.Return) { return 0, gonvml.ERROR_NOT_SUPPORTED },
		GetComputeRunningProcessesFunc:         func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.SUCCESS },
		GetGraphicsRunningProcessesFunc:        func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.ERROR_NOT_SUPPORTED },
		GetMPSComputeRunningProcessesFunc:      func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.SUCCESS },
		GetMigModeFunc:                         func() (int, int, gonvml.Return) { return 0, 0, gonvml.ERROR_NOT_SUPPORTED },
		GetUtilizationRatesFunc:                func() (gonvml.Utilization, gonvml.Return) { return gonvml.Utilization{}, gonvml.ERROR_NOT_SUPPORTED },
		GetPowerUsageFunc:                      func() (uint32, gonvml.Return) { return 0, gonvml.ERROR_NOT_SUPPORTED },
		GetDeviceHandleFromMigDeviceHandleFunc: func() (gonvml.Device, gonvml.Return) { return gpu, gonvml.SUCCESS },
		GetMemoryInfoFunc: func() (gonvml.Memory, gonvml.Return) {
			return gonvml.Memory{Total: bytes, Free: bytes}, gonvml.SUCCESS
		},
		GetBAR1MemoryInfoFunc: func() (gonvml.BAR1Memory, gonvml.Return) { return gonvml.BAR1Memory{}, gonvml.ERROR_NOT_SUPPORTED },
	}
}

// profileName returns the driver's name of a profile, made of its slices and its memory. The largest profile has the memory of the
// whole GPU.
func profileName(gpu *server.Device, profile gonvml.GpuInstanceProfileInfo) string {
	mebibytes := profile.MemorySizeMB
	if int(profile.MultiprocessorCount) == fullSMs(gpu) {
		mebibytes = gpu.Config.MemoryMB
	}
	name := fmt.Sprintf("%dg.%dgb", profile.SliceCount, (mebibytes+1023)/1024)
	if profile.Id == gonvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1 || profile.Id == gonvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1 {
		name += "+me"
	}
	return name
}
