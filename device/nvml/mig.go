package nvml

import (
	"context"
	"errors"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tranche-gpu/tranche/device/mig"
)

// Partitioner is what Tranche uses of NVML to partition GPUs with MIG. Each call ends when its context does, even if the
// driver does not answer.
type Partitioner interface {
	// MIGProfiles returns the sizes that instances of a GPU can have. Many drivers list them only while MIG is on.
	MIGProfiles(ctx context.Context, uuid string) ([]mig.Profile, error)
	// ReadMIG returns the MIG mode of a GPU and its instances.
	ReadMIG(ctx context.Context, uuid string) (MIG, error)
	// InstanceMemory returns the fields of Telemetry that are about memory, for the instance whose device has this UUID.
	InstanceMemory(ctx context.Context, uuid string) (*Telemetry, error)
	// SetMIG turns MIG on or off. On GPUs before Hopper that may take effect only after a reset of the GPU, for which
	// nothing may use it: the error is ErrMIGPending.
	SetMIG(ctx context.Context, uuid string, on bool) error
	// CreateInstance creates an instance and, in it, one compute instance that has all of it.
	CreateInstance(ctx context.Context, uuid string, profile mig.Profile, at mig.Place) (MIGInstance, error)
	// DestroyInstance destroys an instance and the compute instances in it. It is not an error if it is gone already; if
	// something uses it, the error is ErrInUse.
	DestroyInstance(ctx context.Context, uuid string, gpuInstance int) error
}

// ErrMIGPending says that MIG will be on, or off, when the GPU has been reset.
var ErrMIGPending = errors.New("it takes effect when the GPU is reset, for which nothing may use it: end what " +
	"`nvidia-smi` lists, monitoring (DCGM) and the Nomad agent, then run `nvidia-smi --gpu-reset`; or restart the machine")

// ErrInUse says that something uses an instance.
var ErrInUse = errors.New("something uses it")

// MIG is the MIG mode of a GPU and its instances.
type MIG struct {
	// Capable is whether the GPU has MIG at all.
	Capable bool
	// Enabled is whether MIG is on, Pending whether it will be after a reset.
	Enabled, Pending bool
	// Instances are the GPU's instances.
	Instances []MIGInstance
}

// MIGInstance is a GPU instance of MIG.
type MIGInstance struct {
	mig.Instance
	// GPUInstance is the driver's ID of it, and ComputeInstance that of the compute instance in it; -1 if it has none, so
	// that nothing can use it.
	GPUInstance, ComputeInstance int
	// UUID and Name are those of the device that programs see; empty without a compute instance.
	UUID, Name string
	// MemoryBytes, ReservedBytes and UsedBytes are the device's, as of a GPU, and Multiprocessors its number of them.
	MemoryBytes, ReservedBytes, UsedBytes uint64
	Multiprocessors                       int
}

// Origin is where a MIG instance is.
type Origin struct {
	mig.Instance
	// GPUUUID and GPUName are those of the physical GPU, GPUMemoryBytes is its memory.
	GPUUUID, GPUName string
	GPUMemoryBytes   uint64
}

// Instance returns a MIG instance as a GPU of its own. What the driver does not report of an instance is its GPU's.
func (g GPU) Instance(i MIGInstance) GPU {
	g.Origin = &Origin{Instance: i.Instance, GPUUUID: g.UUID, GPUName: g.Name, GPUMemoryBytes: g.MemoryBytes}
	g.UUID, g.Name, g.MIG, g.UtilizationPercent = i.UUID, i.Name, MIG{}, -1
	g.MemoryBytes, g.ReservedBytes, g.UsedBytes = i.MemoryBytes, i.ReservedBytes, i.UsedBytes
	g.setSMs(int64(i.Multiprocessors))
	return g
}

// WithInstances returns the GPUs, each before those of its MIG instances that the function selects by their UUID.
func (n *Node) WithInstances(selected func(uuid string) bool) []GPU {
	var all []GPU
	for _, g := range n.GPUs {
		all = append(all, g)
		for _, instance := range g.MIG.Instances {
			if instance.UUID != "" && selected(instance.UUID) {
				all = append(all, g.Instance(instance))
			}
		}
	}
	return all
}

// migSymbols are the functions that this file calls beyond requiredSymbols. A driver from before MIG has none of them.
var migSymbols = []string{
	"nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode", "nvmlDeviceGetGpuInstanceProfileInfo",
	"nvmlDeviceGetGpuInstancePossiblePlacements", "nvmlDeviceCreateGpuInstanceWithPlacement",
	"nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceDestroy",
	"nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceCreateComputeInstance",
	"nvmlGpuInstanceGetComputeInstances", "nvmlComputeInstanceGetInfo", "nvmlComputeInstanceDestroy",
	"nvmlDeviceGetAttributes_v2",
}

// absent reports whether an answer means that the GPU lacks a feature, or that the driver is older than it.
func absent(ret gonvml.Return) bool {
	switch ret {
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_INVALID_ARGUMENT, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_NOT_FOUND:
		return true
	}
	return false
}

// readMIG reads the MIG mode of a GPU and its instances.
func (l *Library) readMIG(device gonvml.Device, gpu *GPU) gonvml.Return {
	if !l.has(migSymbols...) {
		return gonvml.SUCCESS
	}
	current, pending, ret := device.GetMigMode()
	if absent(ret) {
		return gonvml.SUCCESS
	}
	if ret != gonvml.SUCCESS {
		return ret
	}
	gpu.MIG = MIG{
		Capable: true, Enabled: current == gonvml.DEVICE_MIG_ENABLE, Pending: pending == gonvml.DEVICE_MIG_ENABLE,
	}
	if gpu.MIG.Enabled {
		gpu.MIG.Instances, ret = l.instances(device)
	}
	return ret
}

// ReadMIG implements Partitioner.
func (l *Library) ReadMIG(ctx context.Context, uuid string) (MIG, error) {
	return onGPU(ctx, l, uuid, func(device gonvml.Device) (MIG, error) {
		var gpu GPU
		if ret := l.readMIG(device, &gpu); ret != gonvml.SUCCESS {
			return MIG{}, failure("read the MIG instances of the GPU "+uuid, ret)
		}
		return gpu.MIG, nil
	})
}

// InstanceMemory implements Partitioner.
func (l *Library) InstanceMemory(ctx context.Context, uuid string) (*Telemetry, error) {
	return queryGPU(ctx, l, uuid, memoryQueries)
}

// instances lists the GPU instances, including those without a compute instance, which a process leaves that dies while it
// creates one.
func (l *Library) instances(device gonvml.Device) ([]MIGInstance, gonvml.Return) {
	var all []MIGInstance
	for id := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := device.GetGpuInstanceProfileInfo(id)
		if absent(ret) {
			continue
		}
		if ret != gonvml.SUCCESS {
			return nil, ret
		}
		found, ret := device.GetGpuInstances(&info)
		if absent(ret) {
			continue
		}
		if ret != gonvml.SUCCESS {
			return nil, ret
		}
		for _, gi := range found {
			instance, ret := l.instance(device, gi, id, info)
			if ret == gonvml.ERROR_NOT_FOUND {
				continue // destroyed since it was listed
			}
			if ret != gonvml.SUCCESS {
				return nil, ret
			}
			all = append(all, instance)
		}
	}
	return all, gonvml.SUCCESS
}

// instance reads one GPU instance.
func (l *Library) instance(
	device gonvml.Device, gi gonvml.GpuInstance, profile int, info gonvml.GpuInstanceProfileInfo,
) (MIGInstance, gonvml.Return) {
	about, ret := gi.GetInfo()
	if ret != gonvml.SUCCESS {
		return MIGInstance{}, ret
	}
	name, ret := l.profileName(device, profile, info)
	if ret != gonvml.SUCCESS {
		return MIGInstance{}, ret
	}
	instance := MIGInstance{
		Instance: mig.Instance{
			Profile: name, Place: mig.Place{Start: int(about.Placement.Start), Size: int(about.Placement.Size)},
		},
		GPUInstance: int(about.Id), ComputeInstance: -1,
	}
	computes, ret := computeInstances(gi)
	if ret != gonvml.SUCCESS || len(computes) == 0 {
		return instance, ret
	}
	return instance, l.describe(&instance, computes[0])
}

// describe reads the compute instance and its device.
func (l *Library) describe(i *MIGInstance, ci gonvml.ComputeInstance) gonvml.Return {
	about, ret := ci.GetInfo()
	if ret != gonvml.SUCCESS {
		return ret
	}
	i.ComputeInstance = int(about.Id)
	if i.UUID, ret = about.Device.GetUUID(); ret != gonvml.SUCCESS {
		return ret
	}
	if i.Name, ret = about.Device.GetName(); ret != gonvml.SUCCESS {
		return ret
	}
	attributes, ret := about.Device.GetAttributes()
	if ret != gonvml.SUCCESS {
		return ret
	}
	i.Multiprocessors = int(attributes.MultiprocessorCount)
	var memory GPU
	if ret = readMemory(about.Device, &memory); ret == gonvml.SUCCESS {
		ret = l.readReserved(about.Device, &memory)
	}
	i.MemoryBytes, i.ReservedBytes, i.UsedBytes = memory.MemoryBytes, memory.ReservedBytes, memory.UsedBytes
	return ret
}

// computeInstances lists the compute instances in a GPU instance.
func computeInstances(gi gonvml.GpuInstance) ([]gonvml.ComputeInstance, gonvml.Return) {
	var all []gonvml.ComputeInstance
	for id := range gonvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(id, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if absent(ret) {
			continue
		}
		if ret != gonvml.SUCCESS {
			return nil, ret
		}
		found, ret := gi.GetComputeInstances(&info)
		if absent(ret) {
			continue
		}
		if ret != gonvml.SUCCESS {
			return nil, ret
		}
		all = append(all, found...)
	}
	return all, gonvml.SUCCESS
}

// MIGProfiles implements Partitioner.
func (l *Library) MIGProfiles(ctx context.Context, uuid string) ([]mig.Profile, error) {
	return onGPU(ctx, l, uuid, func(device gonvml.Device) ([]mig.Profile, error) {
		var profiles []mig.Profile
		for id := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
			info, ret := device.GetGpuInstanceProfileInfo(id)
			if absent(ret) {
				continue
			}
			if ret != gonvml.SUCCESS {
				return nil, failure(fmt.Sprintf("read MIG's profile %d of the GPU %s", id, uuid), ret)
			}
			profile, err := l.profile(device, id, info)
			if err != nil {
				return nil, err
			}
			profiles = append(profiles, profile)
		}
		return profiles, nil
	})
}

func (l *Library) profile(device gonvml.Device, id int, info gonvml.GpuInstanceProfileInfo) (mig.Profile, error) {
	profile := mig.Profile{
		ID: id, Bytes: info.MemorySizeMB << 20, Multiprocessors: int(info.MultiprocessorCount), Max: int(info.InstanceCount),
	}
	var ret gonvml.Return
	if profile.Name, ret = l.profileName(device, id, info); ret != gonvml.SUCCESS {
		return profile, failure(fmt.Sprintf("read the name of MIG's profile %d", id), ret)
	}
	places, ret := device.GetGpuInstancePossiblePlacements(&info)
	if ret != gonvml.SUCCESS {
		return profile, failure("read where instances of the profile "+profile.Name+" may lie", ret)
	}
	for _, at := range places {
		profile.Places = append(profile.Places, mig.Place{Start: int(at.Start), Size: int(at.Size)})
	}
	return profile, nil
}

// SetMIG implements Partitioner.
func (l *Library) SetMIG(ctx context.Context, uuid string, on bool) error {
	mode := gonvml.DEVICE_MIG_DISABLE
	if on {
		mode = gonvml.DEVICE_MIG_ENABLE
	}
	_, err := onGPU(ctx, l, uuid, func(device gonvml.Device) (struct{}, error) {
		// Changing the mode detaches the GPU from the driver for a moment, which invalidates handles.
		defer func() { l.renew = true; l.gpuCalls.clearHandles() }()
		activation, ret := device.SetMigMode(mode)
		if ret != gonvml.SUCCESS {
			return struct{}{}, failure("set MIG's mode of the GPU "+uuid, ret)
		}
		if activation != gonvml.SUCCESS {
			return struct{}{}, fmt.Errorf("MIG's mode of the GPU %s is set (%w): %w", uuid, activation, ErrMIGPending)
		}
		return struct{}{}, nil
	})
	return err
}

// CreateInstance implements Partitioner.
func (l *Library) CreateInstance(ctx context.Context, uuid string, profile mig.Profile, at mig.Place) (MIGInstance, error) {
	return onGPU(ctx, l, uuid, func(device gonvml.Device) (MIGInstance, error) {
		what := fmt.Sprintf("create an instance %s at slot %d of the GPU %s", profile.Name, at.Start, uuid)
		info, ret := device.GetGpuInstanceProfileInfo(profile.ID)
		if ret != gonvml.SUCCESS {
			return MIGInstance{}, failure(what+": read its profile", ret)
		}
		place := gonvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
		gi, ret := device.CreateGpuInstanceWithPlacement(&info, &place)
		if ret != gonvml.SUCCESS {
			return MIGInstance{}, failure(what, ret)
		}
		instance, ret := l.fill(device, gi, profile.ID, info)
		if ret != gonvml.SUCCESS {
			return MIGInstance{}, errors.Join(failure(what+": create its compute instance", ret), destroy(gi))
		}
		return instance, nil
	})
}

// fill creates the compute instance that has all of a GPU instance.
func (l *Library) fill(
	device gonvml.Device, gi gonvml.GpuInstance, profile int, info gonvml.GpuInstanceProfileInfo,
) (MIGInstance, gonvml.Return) {
	whole, ret := wholeCompute(gi)
	if ret != gonvml.SUCCESS {
		return MIGInstance{}, ret
	}
	if _, ret = gi.CreateComputeInstance(&whole); ret != gonvml.SUCCESS {
		return MIGInstance{}, ret
	}
	return l.instance(device, gi, profile, info)
}

// wholeCompute returns the largest profile of compute instances.
func wholeCompute(gi gonvml.GpuInstance) (largest gonvml.ComputeInstanceProfileInfo, ret gonvml.Return) {
	found := gonvml.ERROR_NOT_SUPPORTED
	for id := range gonvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(id, gonvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if absent(ret) {
			continue
		}
		if ret != gonvml.SUCCESS {
			return largest, ret
		}
		if info.SliceCount > largest.SliceCount {
			largest, found = info, gonvml.SUCCESS
		}
	}
	return largest, found
}

// DestroyInstance implements Partitioner.
func (l *Library) DestroyInstance(ctx context.Context, uuid string, gpuInstance int) error {
	_, err := onGPU(ctx, l, uuid, func(device gonvml.Device) (struct{}, error) {
		gi, ret := device.GetGpuInstanceById(gpuInstance)
		if ret == gonvml.ERROR_NOT_FOUND || ret == gonvml.ERROR_NOT_SUPPORTED { // without MIG there are none
			return struct{}{}, nil
		}
		if ret != gonvml.SUCCESS {
			return struct{}{}, failure(fmt.Sprintf("find the GPU instance %d of the GPU %s", gpuInstance, uuid), ret)
		}
		if err := destroy(gi); err != nil {
			return struct{}{}, fmt.Errorf("the GPU instance %d of the GPU %s: %w", gpuInstance, uuid, err)
		}
		return struct{}{}, nil
	})
	return err
}

// destroy destroys a GPU instance after its compute instances.
func destroy(gi gonvml.GpuInstance) error {
	computes, ret := computeInstances(gi)
	if ret != gonvml.SUCCESS {
		return failure("list the compute instances", ret)
	}
	for _, ci := range computes {
		if ret := ci.Destroy(); ret != gonvml.SUCCESS && ret != gonvml.ERROR_NOT_FOUND {
			return destroyFailure("destroy the compute instance", ret)
		}
	}
	if ret := gi.Destroy(); ret != gonvml.SUCCESS && ret != gonvml.ERROR_NOT_FOUND {
		return destroyFailure("destroy the GPU instance", ret)
	}
	return nil
}

func destroyFailure(attempt string, ret gonvml.Return) error {
	if ret == gonvml.ERROR_IN_USE {
		return fmt.Errorf("NVML could not %s: %w", attempt, ErrInUse)
	}
	return failure(attempt, ret)
}

// onGPU makes one call about a GPU.
func onGPU[T any](ctx context.Context, l *Library, uuid string, fn func(gonvml.Device) (T, error)) (T, error) {
	return call(ctx, l, func() (T, error) {
		var none T
		device, err := l.find(uuid)
		if err != nil {
			return none, err
		}
		if !l.has(migSymbols...) {
			return none, fmt.Errorf("the driver of %s is older than MIG", l.driverRoot)
		}
		return fn(device)
	})
}
