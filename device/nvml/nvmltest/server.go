package nvmltest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
)

// missingSymbols are functions that a Server's library lacks, because a mock cannot return their answer, or has no data for it.
var missingSymbols = map[string]bool{
	"nvmlDeviceGetMemoryInfo_v2":           true,
	"nvmlDeviceGetGpuInstanceProfileInfoV": true,
	"nvmlDeviceSetMemoryLimits_v1":         true,
}

// Server adds functions to one of go-nvml's mock servers, such as dgxa100.New(), and returns it. Without them calls would panic. The
// GPUs are idle, healthy and alike. A test may replace any function afterwards.
func Server(s *server.Server) gonvml.Interface {
	s.LookupSymbolFunc = func(symbol string) error {
		if missingSymbols[symbol] {
			return errors.New("no symbol " + symbol)
		}
		return nil
	}
	s.EventSetCreateFunc = func() (gonvml.EventSet, gonvml.Return) { return noEvents(), gonvml.SUCCESS }
	migs := &instances{server: s}
	byUUID := s.DeviceGetHandleByUUIDFunc
	s.DeviceGetHandleByUUIDFunc = func(uuid string) (gonvml.Device, gonvml.Return) {
		if device := migs.find(uuid); device != nil {
			return device, gonvml.SUCCESS
		}
		device, ret := byUUID(uuid)
		if ret == gonvml.ERROR_INVALID_ARGUMENT {
			ret = gonvml.ERROR_NOT_FOUND // as the driver does
		}
		return device, ret
	}
	for _, device := range s.Devices {
		gpu := device.(*server.Device)
		completeIdentity(gpu)
		completeTelemetry(&gpu.Device)
		completeHealth(&gpu.Device)
		completeComputeMode(&gpu.Device)
		migs.complete(gpu)
	}
	return s
}

// noEvents returns an event set that never receives an event.
func noEvents() gonvml.EventSet {
	freed := make(chan struct{})
	return &mock.EventSet{
		WaitFunc: func(milliseconds uint32) (gonvml.EventData, gonvml.Return) {
			select {
			case <-time.After(time.Duration(milliseconds) * time.Millisecond):
				return gonvml.EventData{}, gonvml.ERROR_TIMEOUT
			case <-freed:
				return gonvml.EventData{}, gonvml.ERROR_INVALID_ARGUMENT
			}
		},
		FreeFunc: sync.OnceValue(func() gonvml.Return { close(freed); return gonvml.SUCCESS }),
	}
}

// completeIdentity sets a PCI bus ID in the driver's form.
func completeIdentity(gpu *server.Device) {
	pci := gpu.GetPciInfoFunc
	gpu.GetPciInfoFunc = func() (gonvml.PciInfo, gonvml.Return) {
		info, ret := pci()
		for i, c := range fmt.Sprintf("%08X:%02X:00.0", 0, gpu.Index) {
			info.BusId[i] = int8(c)
		}
		return info, ret
	}
	gpu.GetVirtualizationModeFunc = func() (gonvml.GpuVirtualizationMode, gonvml.Return) {
		return gonvml.GPU_VIRTUALIZATION_MODE_NONE, gonvml.SUCCESS
	}
	gpu.IsMigDeviceHandleFunc = func() (bool, gonvml.Return) { return false, gonvml.SUCCESS }
	gpu.GetAddressingModeFunc = func() (gonvml.DeviceAddressingMode, gonvml.Return) {
		return gonvml.DeviceAddressingMode{}, gonvml.ERROR_NOT_SUPPORTED
	}
	gpu.GetNumGpuCoresFunc = func() (int, gonvml.Return) {
		sms := fullSMs(gpu)
		if sms == 0 {
			return 0, gonvml.ERROR_NOT_SUPPORTED
		}
		perSM := 128
		if gpu.Config.CudaMajor == 8 && gpu.Config.CudaMinor == 0 {
			perSM = 64
		}
		return sms * perSM, gonvml.SUCCESS
	}
}

// fullSMs returns the number of multiprocessors of the GPU's largest MIG profile. The mocks have no other number of them.
func fullSMs(gpu *server.Device) int {
	return int(max(
		gpu.Config.MIGProfiles.GpuInstanceProfiles[gonvml.GPU_INSTANCE_PROFILE_7_SLICE].MultiprocessorCount,
		gpu.Config.MIGProfiles.GpuInstanceProfiles[gonvml.GPU_INSTANCE_PROFILE_4_SLICE].MultiprocessorCount,
	))
}

// completeTelemetry sets the measurements of an idle device.
func completeTelemetry(d *mock.Device) {
	d.GetUtilizationRatesFunc = func() (gonvml.Utilization, gonvml.Return) { return gonvml.Utilization{}, gonvml.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, gonvml.Return) { return 68000, gonvml.SUCCESS }
	d.GetEnforcedPowerLimitFunc = func() (uint32, gonvml.Return) { return 700000, gonvml.SUCCESS }
	d.GetTemperatureFunc = func(gonvml.TemperatureSensors) (uint32, gonvml.Return) { return 33, gonvml.SUCCESS }
	d.GetClockInfoFunc = func(clock gonvml.ClockType) (uint32, gonvml.Return) {
		if clock == gonvml.CLOCK_MEM {
			return 2619, gonvml.SUCCESS
		}
		return 345, gonvml.SUCCESS
	}
	idle := func() (uint32, uint32, gonvml.Return) { return 0, 167000, gonvml.SUCCESS }
	d.GetEncoderUtilizationFunc, d.GetDecoderUtilizationFunc = idle, idle
	d.GetTotalEnergyConsumptionFunc = func() (uint64, gonvml.Return) { return 3_600_000, gonvml.SUCCESS }
	d.GetBAR1MemoryInfoFunc = func() (gonvml.BAR1Memory, gonvml.Return) {
		return gonvml.BAR1Memory{Bar1Total: 128 << 30, Bar1Used: 1 << 20, Bar1Free: 128<<30 - 1<<20}, gonvml.SUCCESS
	}
	d.GetMaxPcieLinkWidthFunc = func() (int, gonvml.Return) { return 16, gonvml.SUCCESS }
	d.GetMaxPcieLinkGenerationFunc = func() (int, gonvml.Return) { return 5, gonvml.SUCCESS }
	d.GetDisplayModeFunc = func() (gonvml.EnableState, gonvml.Return) { return gonvml.FEATURE_DISABLED, gonvml.SUCCESS }
	d.GetPersistenceModeFunc = func() (gonvml.EnableState, gonvml.Return) { return gonvml.FEATURE_ENABLED, gonvml.SUCCESS }
	none := func() ([]gonvml.ProcessInfo, gonvml.Return) { return nil, gonvml.SUCCESS }
	d.GetComputeRunningProcessesFunc, d.GetGraphicsRunningProcessesFunc = none, none
	d.GetMPSComputeRunningProcessesFunc = none
}

// completeHealth sets the state of a healthy device. The driver of the mocks does not support recovery actions, and their GPUs do
// not support retired pages.
func completeHealth(d *mock.Device) {
	d.GetEccModeFunc = func() (gonvml.EnableState, gonvml.EnableState, gonvml.Return) {
		return gonvml.FEATURE_ENABLED, gonvml.FEATURE_ENABLED, gonvml.SUCCESS
	}
	d.GetTotalEccErrorsFunc = func(gonvml.MemoryErrorType, gonvml.EccCounterType) (uint64, gonvml.Return) {
		return 0, gonvml.SUCCESS
	}
	d.GetDetailedEccErrorsFunc = func(gonvml.MemoryErrorType, gonvml.EccCounterType) (gonvml.EccErrorCounts, gonvml.Return) {
		return gonvml.EccErrorCounts{}, gonvml.SUCCESS
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, gonvml.Return) { return 0, 0, false, false, gonvml.SUCCESS }
	d.GetRowRemapperHistogramFunc = func() (gonvml.RowRemapperHistogramValues, gonvml.Return) {
		return gonvml.RowRemapperHistogramValues{Max: 640}, gonvml.SUCCESS
	}
	d.GetRetiredPagesFunc = func(gonvml.PageRetirementCause) ([]uint64, gonvml.Return) {
		return nil, gonvml.ERROR_NOT_SUPPORTED
	}
	d.GetRetiredPagesPendingStatusFunc = func() (gonvml.EnableState, gonvml.Return) { return 0, gonvml.ERROR_NOT_SUPPORTED }
	d.GetFieldValuesFunc = func(fields []gonvml.FieldValue) gonvml.Return {
		for i := range fields {
			fields[i].NvmlReturn = uint32(gonvml.ERROR_NOT_SUPPORTED)
		}
		return gonvml.SUCCESS
	}
	d.GetSupportedEventTypesFunc = func() (uint64, gonvml.Return) { return gonvml.EventTypeXidCriticalError, gonvml.SUCCESS }
	d.RegisterEventsFunc = func(uint64, gonvml.EventSet) gonvml.Return { return gonvml.SUCCESS }
}

// completeComputeMode stores the compute mode of a device.
func completeComputeMode(d *mock.Device) {
	var mu sync.Mutex
	mode := gonvml.COMPUTEMODE_DEFAULT
	d.GetComputeModeFunc = func() (gonvml.ComputeMode, gonvml.Return) {
		mu.Lock()
		defer mu.Unlock()
		return mode, gonvml.SUCCESS
	}
	d.SetComputeModeFunc = func(wanted gonvml.ComputeMode) gonvml.Return {
		mu.Lock()
		defer mu.Unlock()
		mode = wanted
		return gonvml.SUCCESS
	}
}
