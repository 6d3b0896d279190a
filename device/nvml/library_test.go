package nvml

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

const uuid = "GPU-00000000-1111-2222-3333-444444444444"

// device answers as an H200 does.
func device() *mock.Device {
	return &mock.Device{
		GetUUIDFunc:        func() (string, gonvml.Return) { return uuid, gonvml.SUCCESS },
		GetNameFunc:        func() (string, gonvml.Return) { return "NVIDIA H200", gonvml.SUCCESS },
		GetMinorNumberFunc: func() (int, gonvml.Return) { return 3, gonvml.SUCCESS },
		GetPciInfoFunc: func() (gonvml.PciInfo, gonvml.Return) {
			info := gonvml.PciInfo{}
			for i, c := range "00000000:18:00.0" {
				info.BusId[i] = int8(c)
			}
			return info, gonvml.SUCCESS
		},
		GetCudaComputeCapabilityFunc: func() (int, int, gonvml.Return) { return 9, 0, gonvml.SUCCESS },
		GetMemoryInfoFunc: func() (gonvml.Memory, gonvml.Return) {
			return gonvml.Memory{Total: 143771 << 20, Used: 600 << 20}, gonvml.SUCCESS
		},
		GetMemoryInfo_v2Func: func() (gonvml.Memory_v2, gonvml.Return) {
			return gonvml.Memory_v2{Reserved: 500 << 20}, gonvml.SUCCESS
		},
		GetUtilizationRatesFunc: func() (gonvml.Utilization, gonvml.Return) {
			return gonvml.Utilization{Gpu: 42}, gonvml.SUCCESS
		},
	}
}

// hasOnly is the symbol table of a library that has these functions beside the
// required ones.
func hasOnly(symbols ...string) func(string) error {
	return func(symbol string) error {
		if slices.Contains(symbols, symbol) {
			return nil
		}
		return errors.New("no symbol " + symbol)
	}
}

// library answers as the NVML of a node with one GPU does.
func library(d gonvml.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:                   func() gonvml.Return { return gonvml.SUCCESS },
		ShutdownFunc:               func() gonvml.Return { return gonvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, gonvml.Return) { return "570.124.06", gonvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, gonvml.Return) {
			return 12080, gonvml.SUCCESS
		},
		DeviceGetCountFunc:         func() (int, gonvml.Return) { return 1, gonvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (gonvml.Device, gonvml.Return) { return d, gonvml.SUCCESS },
		DeviceGetHandleByUUIDFunc:  func(string) (gonvml.Device, gonvml.Return) { return d, gonvml.SUCCESS },
		ExtensionsFunc: func() gonvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: hasOnly("nvmlDeviceGetMemoryInfo_v2")}
		},
	}
}

// loaded is a Library whose NVML is the mock, at a time that the test sets.
func loaded(lib gonvml.Interface, now *time.Time) *Library {
	l := NewWith(lib)
	l.now = func() time.Time { return *now }
	return l
}

func TestLibrary_Read(t *testing.T) {
	now := time.Unix(1000, 0)
	node, err := loaded(library(device()), &now).Read(t.Context())
	must.NoError(t, err)
	must.Eq(t, &Node{
		DriverVersion: "570.124.06",
		CUDAVersion:   "12.8",
		GPUs: []GPU{{
			UUID: uuid, Name: "NVIDIA H200", PCIBusID: "00000000:18:00.0", Minor: 3, ComputeCapability: "9.0",
			MemoryBytes: 143771 << 20, ReservedBytes: 500 << 20, UsedBytes: 600 << 20, UtilizationPercent: 42,
		}},
	}, node)
	must.Eq(t, 143271<<20, node.GPUs[0].UsableBytes())
}

func TestLibrary_Read_whatAGPUMayNotTell(t *testing.T) {
	d := device()
	d.GetUtilizationRatesFunc = func() (gonvml.Utilization, gonvml.Return) {
		return gonvml.Utilization{}, gonvml.ERROR_NOT_SUPPORTED
	}
	d.GetMemoryInfo_v2Func = func() (gonvml.Memory_v2, gonvml.Return) {
		return gonvml.Memory_v2{}, gonvml.ERROR_NOT_SUPPORTED
	}
	now := time.Unix(1000, 0)
	node, err := loaded(library(d), &now).Read(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, node.Failed)
	must.Eq(t, -1, node.GPUs[0].UtilizationPercent)
	must.Eq(t, 0, node.GPUs[0].ReservedBytes)
}

// A GPU that stops answering is told of by the UUID it had, and sessions are
// begun again, but not at every call, until it answers again.
func TestLibrary_Read_lostGPU(t *testing.T) {
	d := device()
	lib := library(d)
	now := time.Unix(1000, 0)
	l := loaded(lib, &now)
	_, err := l.Read(t.Context())
	must.NoError(t, err)

	answer := d.GetMemoryInfoFunc
	d.GetMemoryInfoFunc = func() (gonvml.Memory, gonvml.Return) { return gonvml.Memory{}, gonvml.ERROR_GPU_IS_LOST }
	node, err := l.Read(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, node.GPUs)
	must.Len(t, 1, node.Failed)
	must.Eq(t, uuid, node.Failed[0].UUID)
	must.ErrorIs(t, node.Failed[0].Err, gonvml.ERROR_GPU_IS_LOST)
	must.StrContains(t, node.Failed[0].Err.Error(), "NVML could not read the memory of the GPU at index 0: ")

	_, err = l.Read(t.Context())
	must.NoError(t, err)
	must.Len(t, 0, lib.ShutdownCalls())

	now = now.Add(restartInterval)
	d.GetMemoryInfoFunc = answer
	node, err = l.Read(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, lib.ShutdownCalls())
	must.Len(t, 1, node.GPUs)

	now = now.Add(restartInterval)
	_, err = l.Read(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, lib.ShutdownCalls(), must.Sprint("a healthy session was begun anew"))
}

// After MIG was turned on or off the session is begun again, even if it had just begun: it is registered for events by a handle
// that is no longer valid.
func TestLibrary_SetMIG_renewsSession(t *testing.T) {
	d := device()
	d.GetMigModeFunc = func() (int, int, gonvml.Return) { return 0, 0, gonvml.ERROR_NOT_SUPPORTED }
	d.SetMigModeFunc = func(int) (gonvml.Return, gonvml.Return) { return gonvml.SUCCESS, gonvml.SUCCESS }
	lib := library(d)
	lib.ExtensionsFunc = func() gonvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: hasOnly(migSymbols...)}
	}
	now := time.Unix(1000, 0)
	l := loaded(lib, &now)
	for _, want := range []int{0, 0, 1, 1} {
		_, err := l.Read(t.Context())
		must.NoError(t, err)
		must.Len(t, want, lib.ShutdownCalls())
		if len(d.SetMigModeCalls()) == 0 {
			must.NoError(t, l.SetMIG(t.Context(), uuid, true))
			continue
		}
		now = now.Add(restartInterval)
	}
}

// A process is listed once, on whichever of NVML's lists it is. A list that the driver or the GPU lacks has no processes.
func TestLibrary_Processes(t *testing.T) {
	lists := func(infos ...gonvml.ProcessInfo) func() ([]gonvml.ProcessInfo, gonvml.Return) {
		return func() ([]gonvml.ProcessInfo, gonvml.Return) { return infos, gonvml.SUCCESS }
	}
	const unknown = ^uint64(0)
	d := device()
	d.GetComputeRunningProcessesFunc = lists(gonvml.ProcessInfo{Pid: 7, UsedGpuMemory: 300 << 20},
		gonvml.ProcessInfo{Pid: 8, UsedGpuMemory: unknown}, gonvml.ProcessInfo{Pid: 9, UsedGpuMemory: unknown})
	d.GetGraphicsRunningProcessesFunc = lists(gonvml.ProcessInfo{Pid: 1, UsedGpuMemory: 50 << 20},
		gonvml.ProcessInfo{Pid: 7, UsedGpuMemory: 310 << 20}, gonvml.ProcessInfo{Pid: 8, UsedGpuMemory: 5 << 20})
	d.GetMPSComputeRunningProcessesFunc = lists(gonvml.ProcessInfo{Pid: 7, UsedGpuMemory: 300 << 20},
		gonvml.ProcessInfo{Pid: 2, UsedGpuMemory: 40 << 20})
	lib := library(d)
	lib.ExtensionsFunc = func() gonvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: hasOnly("nvmlDeviceGetComputeRunningProcesses",
			"nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")}
	}
	now := time.Unix(1000, 0)
	l := loaded(lib, &now)
	processes, err := l.Processes(t.Context(), uuid)
	must.NoError(t, err)
	must.Eq(t, []Process{
		{PID: 7, UsedBytes: 310 << 20, UsedKnown: true}, {PID: 8, UsedBytes: 5 << 20, UsedKnown: true},
		{PID: 9}, {PID: 1, OnlyRenders: true, UsedBytes: 50 << 20, UsedKnown: true},
		{PID: 2, UsedBytes: 40 << 20, UsedKnown: true},
	}, processes)

	d.GetGraphicsRunningProcessesFunc = func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.ERROR_NOT_SUPPORTED }
	processes, err = l.Processes(t.Context(), uuid)
	must.NoError(t, err)
	must.Len(t, 4, processes)
	d.GetGraphicsRunningProcessesFunc = func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.ERROR_UNKNOWN }
	_, err = l.Processes(t.Context(), uuid)
	must.ErrorIs(t, err, gonvml.ERROR_UNKNOWN)
	d.GetGraphicsRunningProcessesFunc = lists()
	d.GetComputeRunningProcessesFunc = func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.ERROR_NOT_SUPPORTED }
	_, err = l.Processes(t.Context(), uuid)
	must.ErrorIs(t, err, gonvml.ERROR_NOT_SUPPORTED, must.Sprint("which processes compute is unknown"))
}

func TestLibrary_noLibrary(t *testing.T) {
	root := t.TempDir()
	_, err := New(root).Read(t.Context())
	var noDriver *NoDriverError
	must.True(t, errors.As(err, &noDriver))
	var missing *driverroot.NotFoundError
	must.True(t, errors.As(err, &missing))
	must.StrContains(t, err.Error(), "no NVIDIA driver: no libnvidia-ml.so.1 in the driver root "+root+" (searched /usr/lib/")
}

func TestLibrary_sessionRefused(t *testing.T) {
	cases := []struct {
		ret      gonvml.Return
		noDriver bool
		want     string
	}{
		{gonvml.ERROR_DRIVER_NOT_LOADED, true, "no NVIDIA driver: NVML could not begin a session with the library of the driver root / (is the kernel module loaded?): "},
		{gonvml.ERROR_LIB_RM_VERSION_MISMATCH, false, "is of another version than the kernel module that is loaded, as after an update of the driver: restart the node"},
		{gonvml.ERROR_NO_PERMISSION, false, "NVML could not begin a session: "},
	}
	for _, tc := range cases {
		t.Run(tc.want, func(t *testing.T) {
			ret := tc.ret
			lib := library(device())
			lib.InitFunc = func() gonvml.Return { return ret }
			now := time.Unix(1000, 0)
			l := loaded(lib, &now)
			_, err := l.Read(t.Context())
			var noDriver *NoDriverError
			must.Eq(t, tc.noDriver, errors.As(err, &noDriver))
			must.ErrorIs(t, err, tc.ret)
			must.StrContains(t, err.Error(), tc.want)

			_, err = l.Read(t.Context())
			must.ErrorIs(t, err, tc.ret)
			must.Len(t, 1, lib.InitCalls(), must.Sprint("it tried again at once"))

			ret = gonvml.SUCCESS
			now = now.Add(restartInterval)
			_, err = l.Read(t.Context())
			must.NoError(t, err, must.Sprint("it didn't try again"))
		})
	}
}

// A file with the right name and header that the loader refuses.
func TestLibrary_brokenLibrary(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	must.NoError(t, err)
	root := t.TempDir()
	must.NoError(t, os.MkdirAll(root+"/usr/lib64", 0o755))
	must.NoError(t, os.WriteFile(root+"/usr/lib64/libnvidia-ml.so.1", self[:64], 0o644))
	_, err = New(root).Read(t.Context())
	must.StrContains(t, err.Error(), "load NVML: "+root+"/usr/lib64/libnvidia-ml.so.1: ")
}

// A call that never returns holds up its caller no longer than the caller's
// context, and neither those who come later.
func TestLibrary_stuckDriver(t *testing.T) {
	release := make(chan struct{})
	lib := library(device())
	lib.DeviceGetCountFunc = func() (int, gonvml.Return) { <-release; return 1, gonvml.SUCCESS }
	now := time.Unix(1000, 0)
	l := loaded(lib, &now)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := l.Read(ctx)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.StrContains(t, err.Error(), "NVML did not answer in time")

	_, err = l.Read(ctx)
	must.StrContains(t, err.Error(), "NVML is still busy with an earlier call")

	close(release)
	_, err = l.Read(t.Context())
	must.NoError(t, err)
	must.NoError(t, l.Close(t.Context()))
	must.Len(t, 1, lib.ShutdownCalls())
}
