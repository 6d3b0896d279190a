package nvml_test

import (
	"fmt"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// go-nvml's own servers, which NVIDIA's other programs are tested with.
func TestLibrary_mockServers(t *testing.T) {
	cases := []struct {
		server            *server.Server
		driver, cuda      string
		name, capability  string
		memoryMiB, oneSMs uint64
		oneName           string
	}{
		{dgxa100.New(), "550.54.15", "12.4", "Mock NVIDIA A100-SXM4-40GB", "8.0", 40960, 14, "1g.5gb"},
		{dgxh100.New(), "550.54.15", "12.4", "NVIDIA H100 80GB HBM3", "9.0", 81920, 16, "1g.10gb"},
		{dgxh200.New(), "550.54.15", "12.4", "NVIDIA H200 141GB HBM3e", "9.0", 144384, 16, "1g.18gb"},
		{dgxb200.New(), "560.28.03", "12.6", "NVIDIA B200 180GB HBM3e", "10.0", 184320, 18, "1g.23gb"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			lib := nvmltest.Server(tc.server)
			library := nvml.NewWith(lib)
			node, err := library.Read(t.Context())
			must.NoError(t, err)
			must.Eq(t, tc.driver, node.DriverVersion)
			must.Eq(t, tc.cuda, node.CUDAVersion)
			must.SliceEmpty(t, node.Failed)
			must.Len(t, 8, node.GPUs)
			for i, gpu := range node.GPUs {
				must.Eq(t, tc.name, gpu.Name)
				must.Eq(t, tc.capability, gpu.ComputeCapability)
				must.Eq(t, fmt.Sprintf("00000000:%02X:00.0", i), gpu.PCIBusID)
				must.Eq(t, i, gpu.Minor)
				must.Eq(t, tc.memoryMiB<<20, gpu.MemoryBytes)
				must.Eq(t, 0, gpu.ReservedBytes)
				must.Eq(t, 68000, *gpu.PowerMilliwatts)
				must.Positive(t, gpu.SMs())
				checkIdle(t, library, gpu.UUID)
			}
			checkInstance(t, lib, node.GPUs[3].UUID, tc.name+" MIG "+tc.oneName, uint32(tc.oneSMs))
			must.NoError(t, library.Close(t.Context()))
		})
	}
}

// checkIdle looks at a GPU that is well and does nothing.
func checkIdle(t *testing.T, library *nvml.Library, uuid string) {
	t.Helper()
	telemetry, err := library.Telemetry(t.Context(), uuid)
	must.NoError(t, err)
	must.Eq(t, 0, *telemetry.GPUPercent)
	must.Eq(t, 33, *telemetry.TemperatureCelsius)
	health, err := library.Health(t.Context(), uuid)
	must.NoError(t, err)
	must.Eq(t, "", health.Problem())
	must.Nil(t, health.Pages)
	must.Nil(t, health.Recovery)
	processes, err := library.Processes(t.Context(), uuid)
	must.NoError(t, err)
	must.SliceEmpty(t, processes)
}

// checkInstance makes instances of the smallest profile, by the rules of a real
// driver.
func checkInstance(t *testing.T, lib gonvml.Interface, uuid, name string, sms uint32) {
	t.Helper()
	gpu, ret := lib.DeviceGetHandleByUUID(uuid)
	must.Eq(t, gonvml.SUCCESS, ret)
	profile, ret := gpu.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_1_SLICE)
	must.Eq(t, gonvml.SUCCESS, ret)
	_, ret = gpu.CreateGpuInstance(&profile)
	must.Eq(t, gonvml.ERROR_NOT_SUPPORTED, ret)
	ret, _ = gpu.SetMigMode(gonvml.DEVICE_MIG_ENABLE)
	must.Eq(t, gonvml.SUCCESS, ret)

	place := gonvml.GpuInstancePlacement{Start: 2, Size: 1}
	gi, ret := gpu.CreateGpuInstanceWithPlacement(&profile, &place)
	must.Eq(t, gonvml.SUCCESS, ret)
	_, ret = gpu.CreateGpuInstanceWithPlacement(&profile, &place)
	must.Eq(t, gonvml.ERROR_INSUFFICIENT_RESOURCES, ret)
	capacity, _ := gpu.GetGpuInstanceRemainingCapacity(&profile)
	must.Eq(t, 6, capacity)
	slice, ret := gi.GetComputeInstanceProfileInfo(gonvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
	must.Eq(t, gonvml.SUCCESS, ret)
	ci, ret := gi.CreateComputeInstance(&slice)
	must.Eq(t, gonvml.SUCCESS, ret)
	info, _ := ci.GetInfo()
	got, _ := info.Device.GetName()
	must.Eq(t, name, got)
	attributes, _ := info.Device.GetAttributes()
	must.Eq(t, sms, attributes.MultiprocessorCount)
	id, _ := info.Device.GetUUID()
	found, ret := lib.DeviceGetHandleByUUID(id)
	must.Eq(t, gonvml.SUCCESS, ret)
	must.Eq(t, info.Device, found)
	listed, ret := gpu.GetMigDeviceHandleByIndex(0)
	must.Eq(t, gonvml.SUCCESS, ret)
	must.Eq(t, info.Device, listed)

	must.Eq(t, gonvml.ERROR_IN_USE, gi.Destroy())
	ret, _ = gpu.SetMigMode(gonvml.DEVICE_MIG_DISABLE)
	must.Eq(t, gonvml.ERROR_IN_USE, ret)
	must.Eq(t, gonvml.SUCCESS, ci.Destroy())
	must.Eq(t, gonvml.SUCCESS, gi.Destroy())
	_, ret = gpu.GetMigDeviceHandleByIndex(0)
	must.Eq(t, gonvml.ERROR_NOT_FOUND, ret)
	ret, _ = gpu.SetMigMode(gonvml.DEVICE_MIG_DISABLE)
	must.Eq(t, gonvml.SUCCESS, ret)
}
