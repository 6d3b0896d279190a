package consumers

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"
)

// resetH200 resets the GPU, which nobody may have open meanwhile, and returns it.
func resetH200(t *testing.T, lib nvml.Interface) nvml.Device {
	t.Helper()
	must.Eq(t, nvml.SUCCESS, lib.Shutdown())
	simgpu(t, "reset", "0")
	must.Eq(t, nvml.SUCCESS, lib.Init())
	return gpuByUUID(t, lib, h200UUID)
}

func TestTelemetryThatATestSets(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	for name, v := range map[string]string{
		"power_mw": "123456", "power_limit_mw": "650000", "temperature": "71", "graphics_mhz": "1410", "memory_mhz": "2619",
		"gpu_utilisation": "37", "memory_utilisation": "21", "encoder_utilisation": "5", "decoder_utilisation": "6",
		"bar1_mib": "65536", "bar1_used_mib": "9", "pcie_width": "8", "pcie_generation": "4", "display_mode": "1",
		"persistence_mode": "0",
	} {
		simgpu(t, "set", "0", name, v)
	}
	must.Eq(t, 123456, value[uint32](t)(dev.GetPowerUsage()))
	must.Eq(t, 650000, value[uint32](t)(dev.GetPowerManagementLimit()))
	must.Eq(t, 71, value[uint32](t)(dev.GetTemperature(nvml.TEMPERATURE_GPU)))
	must.Eq(t, 1410, value[uint32](t)(dev.GetClockInfo(nvml.CLOCK_GRAPHICS)))
	must.Eq(t, 2619, value[uint32](t)(dev.GetClockInfo(nvml.CLOCK_MEM)))
	must.Eq(t, nvml.Utilization{Gpu: 37, Memory: 21}, value[nvml.Utilization](t)(dev.GetUtilizationRates()))
	percent, _, ret := dev.GetEncoderUtilization()
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, 5, percent)
	percent, _, ret = dev.GetDecoderUtilization()
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, 6, percent)
	must.Eq(t, nvml.BAR1Memory{Bar1Total: 65536 * mib, Bar1Used: 9 * mib, Bar1Free: 65527 * mib},
		value[nvml.BAR1Memory](t)(dev.GetBAR1MemoryInfo()))
	must.Eq(t, 8, value[int](t)(dev.GetMaxPcieLinkWidth()))
	must.Eq(t, 4, value[int](t)(dev.GetMaxPcieLinkGeneration()))
	must.Eq(t, nvml.FEATURE_ENABLED, value[nvml.EnableState](t)(dev.GetDisplayMode()))
	must.Eq(t, nvml.FEATURE_DISABLED, value[nvml.EnableState](t)(dev.GetPersistenceMode()))
	must.NotEq(t, 71, value[uint32](t)(secondGPU(t, lib).GetTemperature(nvml.TEMPERATURE_GPU)))

	simgpu(t, "set", "0", "temperature", "unsupported")
	_, ret = dev.GetTemperature(nvml.TEMPERATURE_GPU)
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
	simgpu(t, "set", "0", "temperature", "default")
	must.Eq(t, 30, value[uint32](t)(dev.GetTemperature(nvml.TEMPERATURE_GPU)))
}

func TestComputeMode(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	must.Eq(t, nvml.SUCCESS, dev.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	must.Eq(t, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, value[nvml.ComputeMode](t)(dev.GetComputeMode()))
	must.Eq(t, nvml.COMPUTEMODE_DEFAULT, value[nvml.ComputeMode](t)(secondGPU(t, lib).GetComputeMode()))
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, dev.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_THREAD))
	must.Eq(t, nvml.ERROR_INVALID_ARGUMENT, dev.SetComputeMode(9))
	simgpu(t, "fault", "clear") // it is no fault
	must.Eq(t, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, value[nvml.ComputeMode](t)(dev.GetComputeMode()))
}

func TestECCErrors(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	set := value[nvml.EventSet](t)(lib.EventSetCreate())
	t.Cleanup(func() { must.Eq(t, nvml.SUCCESS, set.Free()) })
	must.Eq(t, nvml.SUCCESS, dev.RegisterEvents(nvml.EventTypeDoubleBitEccError, set))

	simgpu(t, "fault", "ecc", "0", "corrected", "l2", "3")
	simgpu(t, "fault", "ecc", "0", "uncorrected", "dram", "2")
	simgpu(t, "fault", "ecc", "0", "uncorrected", "l1", "1")
	const corrected, uncorrected = nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.MEMORY_ERROR_TYPE_UNCORRECTED
	must.Eq(t, 3, value[uint64](t)(dev.GetTotalEccErrors(uncorrected, nvml.VOLATILE_ECC)))
	must.Eq(t, 3, value[uint64](t)(dev.GetTotalEccErrors(corrected, nvml.AGGREGATE_ECC)))
	must.Eq(t, 2, value[uint64](t)(dev.GetMemoryErrorCounter(uncorrected, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_DRAM)))
	must.Eq(t, 1, value[uint64](t)(dev.GetMemoryErrorCounter(uncorrected, nvml.VOLATILE_ECC, nvml.MEMORY_LOCATION_SRAM)))
	must.Eq(t, nvml.EccErrorCounts{L2Cache: 3}, value[nvml.EccErrorCounts](t)(dev.GetDetailedEccErrors(corrected, nvml.VOLATILE_ECC)))
	must.Eq(t, nvml.EventTypeDoubleBitEccError, value[nvml.EventData](t)(set.Wait(10000)).EventType)

	dev = resetH200(t, lib)
	must.Eq(t, 0, value[uint64](t)(dev.GetTotalEccErrors(uncorrected, nvml.VOLATILE_ECC)))
	must.Eq(t, 3, value[uint64](t)(dev.GetTotalEccErrors(uncorrected, nvml.AGGREGATE_ECC)))

	simgpu(t, "set", "0", "ecc_mode", "0")
	_, ret := dev.GetTotalEccErrors(uncorrected, nvml.VOLATILE_ECC)
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
}

func TestRowsAndPages(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	hopper, turing := gpuByUUID(t, lib, h200UUID), gpuByUUID(t, lib, t4UUID)
	for name, v := range map[string]string{"rows_correctable": "1", "rows_uncorrectable": "2", "rows_pending": "1", "banks_none": "4"} {
		simgpu(t, "set", "0", name, v)
	}
	correctable, uncorrectable, pending, failed, ret := hopper.GetRemappedRows()
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, []any{1, 2, true, false}, []any{correctable, uncorrectable, pending, failed})
	must.Eq(t, nvml.RowRemapperHistogramValues{Max: 636, None: 4}, value[nvml.RowRemapperHistogramValues](t)(hopper.GetRowRemapperHistogram()))
	_, _, _, _, ret = turing.GetRemappedRows()
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
	simgpu(t, "set", "0", "rows_failed", "1")
	hopper = resetH200(t, lib)
	turing = gpuByUUID(t, lib, t4UUID)
	_, _, pending, failed, _ = hopper.GetRemappedRows()
	must.Eq(t, []bool{false, true}, []bool{pending, failed}, must.Sprint("a reset does what waits for it, and repairs nothing"))

	simgpu(t, "set", "1", "pages_uncorrectable", "3")
	simgpu(t, "set", "1", "pages_pending", "1")
	must.Len(t, 3, value[[]uint64](t)(turing.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)))
	must.SliceEmpty(t, value[[]uint64](t)(turing.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)))
	must.Eq(t, nvml.FEATURE_ENABLED, value[nvml.EnableState](t)(turing.GetRetiredPagesPendingStatus()))
	_, ret = hopper.GetRetiredPagesPendingStatus()
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
}

func TestRecoveryAction(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	set := value[nvml.EventSet](t)(lib.EventSetCreate())
	t.Cleanup(func() { must.Eq(t, nvml.SUCCESS, set.Free()) })
	must.Eq(t, nvml.SUCCESS, dev.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	action := func() uint32 {
		fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
		must.Eq(t, nvml.SUCCESS, dev.GetFieldValues(fields))
		must.Eq(t, 0, fields[0].NvmlReturn)
		return binary.NativeEndian.Uint32(fields[0].Value[:])
	}
	must.Eq(t, 0, action())
	simgpu(t, "fault", "recovery", "0", "4")
	must.Eq(t, 4, action())
	must.Eq(t, 154, value[nvml.EventData](t)(set.Wait(10000)).EventData)
	dev = resetH200(t, lib)
	must.Eq(t, 0, action())
}

func TestRecoveryActionOfAnOldDriver(t *testing.T) {
	dir := newNode(t)
	old := strings.Replace(topology, "570.124.06", "550.54.15", 1)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "topology"), []byte(old), 0o644))
	lib := openNVML(t)
	fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	must.Eq(t, nvml.SUCCESS, gpuByUUID(t, lib, h200UUID).GetFieldValues(fields))
	must.Eq(t, uint32(nvml.ERROR_NOT_SUPPORTED), fields[0].NvmlReturn)
}

func TestXidOfAnInstance(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	set := value[nvml.EventSet](t)(lib.EventSetCreate())
	t.Cleanup(func() { must.Eq(t, nvml.SUCCESS, set.Free()) })
	must.Eq(t, nvml.SUCCESS, dev.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	simgpu(t, "fault", "xid", "1", "31") // of a GPU that is not in the set
	simgpu(t, "fault", "xid", "0", "95", "5", "2")
	simgpu(t, "fault", "xid", "0", "4294967")
	event := value[nvml.EventData](t)(set.Wait(10000))
	must.Eq(t, []uint64{95, 5, 2}, []uint64{event.EventData, uint64(event.GpuInstanceId), uint64(event.ComputeInstanceId)})
	event = value[nvml.EventData](t)(set.Wait(10000))
	must.Eq(t, []uint64{4294967, 0xFFFFFFFF, 0xFFFFFFFF},
		[]uint64{event.EventData, uint64(event.GpuInstanceId), uint64(event.ComputeInstanceId)})

	simgpu(t, "set", "1", "event_types", "unsupported")
	_, ret := secondGPU(t, lib).GetSupportedEventTypes()
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, secondGPU(t, lib).RegisterEvents(nvml.EventTypeXidCriticalError, set))
}

// A GPU that is taken out is lost to the session that has it; a new one numbers those that are left anew.
func TestGPUTakenOutAndPutIn(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	set := value[nvml.EventSet](t)(lib.EventSetCreate())
	must.Eq(t, nvml.SUCCESS, dev.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	again := func() {
		t.Helper()
		must.Eq(t, nvml.SUCCESS, lib.Shutdown())
		must.Eq(t, nvml.SUCCESS, lib.Init())
	}

	simgpu(t, "fault", "removed", "0", "on")
	_, ret := dev.GetMemoryInfo()
	must.Eq(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = set.Wait(10000)
	must.Eq(t, nvml.ERROR_GPU_IS_LOST, ret)
	must.Eq(t, 2, value[int](t)(lib.DeviceGetCount()))
	again()
	_, ret = set.Wait(0)
	must.Eq(t, nvml.ERROR_INVALID_ARGUMENT, ret, must.Sprint("a set outlived its session"))
	must.Eq(t, 1, value[int](t)(lib.DeviceGetCount()))
	must.Eq(t, t4UUID, value[string](t)(value[nvml.Device](t)(lib.DeviceGetHandleByIndex(0)).GetUUID()))

	simgpu(t, "fault", "removed", "0", "off")
	must.Eq(t, 1, value[int](t)(lib.DeviceGetCount()), must.Sprint("a session found a GPU that came after it"))
	again()
	must.Eq(t, 2, value[int](t)(lib.DeviceGetCount()))
	must.Eq(t, h200UUID, value[string](t)(value[nvml.Device](t)(lib.DeviceGetHandleByIndex(0)).GetUUID()))
}

func TestDriverReload(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	must.Eq(t, nvml.SUCCESS, dev.SetComputeMode(nvml.COMPUTEMODE_PROHIBITED))
	simgpu(t, "fault", "ecc", "0", "uncorrected", "dram", "1")
	simgpu(t, "fault", "driver", "unload")
	_, ret := lib.DeviceGetCount()
	must.Eq(t, nvml.ERROR_DRIVER_NOT_LOADED, ret)
	must.Eq(t, nvml.SUCCESS, lib.Shutdown())
	must.Eq(t, nvml.ERROR_DRIVER_NOT_LOADED, lib.Init())
	simgpu(t, "fault", "mismatch", "on")
	simgpu(t, "fault", "driver", "load")
	must.Eq(t, nvml.ERROR_LIB_RM_VERSION_MISMATCH, lib.Init())
	simgpu(t, "fault", "mismatch", "off")
	must.Eq(t, nvml.SUCCESS, lib.Init())
	dev = gpuByUUID(t, lib, h200UUID)
	must.Eq(t, nvml.COMPUTEMODE_DEFAULT, value[nvml.ComputeMode](t)(dev.GetComputeMode()))
	must.Eq(t, 0, value[uint64](t)(dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)))

	simgpu(t, "fault", "driver", "unload")
	simgpu(t, "fault", "driver", "load")
	_, ret = lib.DeviceGetCount()
	must.Eq(t, nvml.ERROR_UNKNOWN, ret, must.Sprint("a session outlived its driver"))
	must.Eq(t, nvml.SUCCESS, lib.Shutdown())
	must.Eq(t, nvml.SUCCESS, lib.Init())
	must.Eq(t, 2, value[int](t)(lib.DeviceGetCount()))
}

func TestCallsThatHang(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	for function, call := range map[string]func() nvml.Return{
		"nvmlDeviceGetPowerUsage":    func() nvml.Return { _, ret := dev.GetPowerUsage(); return ret },
		"nvmlDeviceGetNumaNodeId":    func() nvml.Return { _, ret := dev.GetNumaNodeId(); return ret }, // nobody wrote it
		"nvmlSystemGetDriverVersion": func() nvml.Return { _, ret := lib.SystemGetDriverVersion(); return ret },
		"all":                        func() nvml.Return { _, ret := lib.DeviceGetCount(); return ret },
	} {
		t.Run(function, func(t *testing.T) {
			simgpu(t, "fault", "hang", function, "on")
			if function != "all" {
				must.Eq(t, 2, value[int](t)(lib.DeviceGetCount()))
			}
			returned := make(chan nvml.Return, 1)
			go func() { returned <- call() }()
			select {
			case <-returned:
				t.Fatal("the call returned")
			case <-time.After(200 * time.Millisecond):
			}
			simgpu(t, "fault", "hang", function, "off")
			select {
			case <-returned:
			case <-time.After(10 * time.Second):
				t.Fatal("the call hangs although it was called off")
			}
		})
	}
	out, err := exec.Command(tool("simgpu"), "fault", "hang", "nvmlDeviceGetColour", "on").CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(out), "NVML has no such function")
}

func TestCallsThatFail(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	simgpu(t, "fault", "nvml-error", "0", "nvmlDeviceGetUUID", "999")
	_, ret := dev.GetUUID()
	must.Eq(t, nvml.ERROR_UNKNOWN, ret)
	must.Eq(t, "NVIDIA H200", value[string](t)(dev.GetName()))
	must.Eq(t, t4UUID, value[string](t)(secondGPU(t, lib).GetUUID()))
	simgpu(t, "fault", "nvml-error", "0", "nvmlDeviceGetUUID", "0")
	must.Eq(t, h200UUID, value[string](t)(dev.GetUUID()))

	simgpu(t, "fault", "nvml-error", "0", "all", "16")
	_, ret = lib.DeviceGetHandleByIndex(0)
	must.Eq(t, nvml.ERROR_RESET_REQUIRED, ret)
	_, ret = dev.GetPowerUsage()
	must.Eq(t, nvml.ERROR_RESET_REQUIRED, ret)
	must.Eq(t, 2, value[int](t)(lib.DeviceGetCount()))
	must.Eq(t, t4UUID, value[string](t)(secondGPU(t, lib).GetUUID()))

	simgpu(t, "fault", "nvml-error", "any", "nvmlInit_v2", "4")
	must.Eq(t, nvml.SUCCESS, lib.Shutdown())
	must.Eq(t, nvml.ERROR_NO_PERMISSION, lib.Init())
	simgpu(t, "fault", "clear")
	must.Eq(t, nvml.SUCCESS, lib.Init())
	must.Eq(t, h200UUID, value[string](t)(gpuByUUID(t, lib, h200UUID).GetUUID()))
}

// A GPU in MIG mode tells less of itself; its instances, and on Hopper the mode, end with the driver.
func TestHealthInMIGMode(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	ret, _ := gpuByUUID(t, lib, h200UUID).SetMigMode(nvml.DEVICE_MIG_ENABLE)
	must.Eq(t, nvml.SUCCESS, ret)
	dev := gpuByUUID(t, lib, h200UUID)
	profile := value[nvml.GpuInstanceProfileInfo](t)(dev.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_2_SLICE))
	value[nvml.GpuInstance](t)(dev.CreateGpuInstance(&profile))
	_, _, _, _, ret = dev.GetRemappedRows()
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
	_, ret = dev.GetUtilizationRates()
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)
	simgpu(t, "set", "0", "temperature", "55")
	must.Eq(t, 55, value[uint32](t)(dev.GetTemperature(nvml.TEMPERATURE_GPU)))

	simgpu(t, "fault", "driver", "unload")
	simgpu(t, "fault", "driver", "load")
	must.Eq(t, nvml.SUCCESS, lib.Shutdown())
	must.Eq(t, nvml.SUCCESS, lib.Init())
	current, _, ret := gpuByUUID(t, lib, h200UUID).GetMigMode()
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, nvml.DEVICE_MIG_DISABLE, current)
	_, _, _, _, ret = gpuByUUID(t, lib, h200UUID).GetRemappedRows()
	must.Eq(t, nvml.SUCCESS, ret)
}
