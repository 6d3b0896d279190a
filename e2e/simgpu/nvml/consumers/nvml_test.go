package consumers

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"
)

// value unwraps an NVML answer.
func value[T any](t *testing.T) func(T, nvml.Return) T {
	return func(v T, ret nvml.Return) T {
		t.Helper()
		must.Eq(t, nvml.SUCCESS, ret)
		return v
	}
}

func TestSystem(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	must.Eq(t, "570.124.06", value[string](t)(lib.SystemGetDriverVersion()))
	must.Eq(t, "12.570.124.06", value[string](t)(lib.SystemGetNVMLVersion()))
	must.Eq(t, 12080, value[int](t)(lib.SystemGetCudaDriverVersion_v2()))
	must.Eq(t, 2, value[int](t)(lib.DeviceGetCount()))
}

// What Nomad's device plugins fingerprint.
func TestFingerprint(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := value[nvml.Device](t)(lib.DeviceGetHandleByIndex(0))
	must.Eq(t, h200UUID, value[string](t)(dev.GetUUID()))
	must.Eq(t, "NVIDIA H200", value[string](t)(dev.GetName()))
	must.Eq(t, 0, value[int](t)(dev.GetIndex()))
	must.Eq(t, 0, value[int](t)(dev.GetMinorNumber()))
	must.Eq(t, 3, value[int](t)(secondGPU(t, lib).GetMinorNumber()))
	must.Eq(t, 4096*mib, value[nvml.Memory](t)(dev.GetMemoryInfo()).Total)
	must.Eq(t, 4096*mib, value[nvml.Memory_v2](t)(dev.GetMemoryInfo_v2()).Total)
	must.Positive(t, value[nvml.BAR1Memory](t)(dev.GetBAR1MemoryInfo()).Bar1Total)
	must.Positive(t, value[uint32](t)(dev.GetPowerManagementLimit()))
	must.Positive(t, value[uint32](t)(dev.GetMaxClockInfo(nvml.CLOCK_MEM)))
	must.Positive(t, value[uint32](t)(dev.GetMaxClockInfo(nvml.CLOCK_SM)))
	must.Positive(t, value[int](t)(dev.GetMaxPcieLinkGeneration()))
	must.Positive(t, value[int](t)(dev.GetMaxPcieLinkWidth()))
	must.Eq(t, nvml.FEATURE_DISABLED, value[nvml.EnableState](t)(dev.GetDisplayMode()))
	must.Eq(t, nvml.FEATURE_ENABLED, value[nvml.EnableState](t)(dev.GetPersistenceMode()))
	must.Eq(t, nvml.COMPUTEMODE_DEFAULT, value[nvml.ComputeMode](t)(dev.GetComputeMode()))
	major, minor, ret := dev.GetCudaComputeCapability()
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, []int{9, 0}, []int{major, minor})
	must.False(t, value[bool](t)(dev.IsMigDeviceHandle()))
}

func secondGPU(t *testing.T, lib nvml.Interface) nvml.Device {
	return value[nvml.Device](t)(lib.DeviceGetHandleByPciBusId("0001:3b:00.0"))
}

// What the same plugins measure.
func TestStatistics(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	must.Eq(t, 0, value[nvml.Utilization](t)(dev.GetUtilizationRates()).Gpu)
	must.Positive(t, value[uint32](t)(dev.GetTemperature(nvml.TEMPERATURE_GPU)))
	must.Positive(t, value[uint32](t)(dev.GetPowerUsage()))
	must.Positive(t, value[uint32](t)(dev.GetClockInfo(nvml.CLOCK_SM)))
	for _, location := range []nvml.MemoryLocation{nvml.MEMORY_LOCATION_L1_CACHE, nvml.MEMORY_LOCATION_L2_CACHE,
		nvml.MEMORY_LOCATION_DEVICE_MEMORY} {
		errors := value[uint64](t)(dev.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC, location))
		must.Eq(t, 0, errors)
	}
	_, _, ret := dev.GetEncoderUtilization()
	must.Eq(t, nvml.SUCCESS, ret)
	_, _, ret = dev.GetDecoderUtilization()
	must.Eq(t, nvml.SUCCESS, ret)
}

func TestGoNvlib(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	seen := map[string]string{}
	devices := device.New(lib)
	err := devices.VisitDevices(func(_ int, d device.Device) error {
		uuid := value[string](t)(d.GetUUID())
		architecture, err := d.GetArchitectureAsString()
		must.NoError(t, err)
		brand, err := d.GetBrandAsString()
		must.NoError(t, err)
		address, err := d.GetPCIBusID()
		must.NoError(t, err)
		enabled, err := d.IsMigEnabled()
		must.NoError(t, err)
		must.False(t, enabled)
		coherent, err := d.IsCoherent()
		must.NoError(t, err)
		must.False(t, coherent)
		attached, err := d.IsFabricAttached()
		must.NoError(t, err)
		must.False(t, attached)
		seen[uuid] = strings.Join([]string{architecture, brand, address}, " ")
		return nil
	})
	must.NoError(t, err)
	must.Eq(t, map[string]string{h200UUID: "Hopper Nvidia 0000:19:00.0", t4UUID: "Turing Tesla 0001:3b:00.0"}, seen)
	migs, err := devices.GetMigDevices()
	must.NoError(t, err)
	must.SliceEmpty(t, migs)
}

// Memory that a process takes through the simulated CUDA driver is what NVML shows: context and allocation, and nothing
// any more after a SIGKILL.
func TestMemoryTakenThroughCUDA(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	must.SliceEmpty(t, value[[]nvml.ProcessInfo](t)(dev.GetComputeRunningProcesses()))

	const held = 300*mib + 64*mib
	process := hold(t, 64*mib)
	must.Eq(t, []nvml.ProcessInfo{{
		Pid:               uint32(process.Process.Pid),
		UsedGpuMemory:     held,
		GpuInstanceId:     0xFFFFFFFF,
		ComputeInstanceId: 0xFFFFFFFF,
	}}, value[[]nvml.ProcessInfo](t)(dev.GetComputeRunningProcesses()))
	memory := value[nvml.Memory_v2](t)(dev.GetMemoryInfo_v2())
	must.Eq(t, held, memory.Used)
	must.Eq(t, memory.Total, memory.Used+memory.Free+memory.Reserved)
	v1 := value[nvml.Memory](t)(dev.GetMemoryInfo())
	must.Eq(t, memory.Used+memory.Reserved, v1.Used)
	must.Eq(t, testProgram("nvml-hold"), value[string](t)(lib.SystemGetProcessName(process.Process.Pid)))
	must.Eq(t, 0, value[nvml.Memory_v2](t)(gpuByUUID(t, lib, t4UUID).GetMemoryInfo_v2()).Used)

	must.NoError(t, process.Process.Kill())
	_ = process.Wait()
	must.Eq(t, 0, value[nvml.Memory_v2](t)(dev.GetMemoryInfo_v2()).Used)
	must.SliceEmpty(t, value[[]nvml.ProcessInfo](t)(dev.GetComputeRunningProcesses()))
}

func TestXidEvents(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	set := value[nvml.EventSet](t)(lib.EventSetCreate())
	t.Cleanup(func() { must.Eq(t, nvml.SUCCESS, set.Free()) })
	supported := value[uint64](t)(dev.GetSupportedEventTypes())
	wanted := uint64(nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeSingleBitEccError)
	must.Eq(t, nvml.SUCCESS, dev.RegisterEvents(wanted&supported, set))

	_, ret := set.Wait(10)
	must.Eq(t, nvml.ERROR_TIMEOUT, ret)
	// Ordered by another process while this one waits.
	ordered := exec.Command(testProgram("nvml-order"), "xid", "0", "48")
	must.NoError(t, ordered.Start())
	begin := time.Now()
	event := value[nvml.EventData](t)(set.Wait(30000))
	must.NoError(t, ordered.Wait())
	must.Less(t, 10*time.Second, time.Since(begin))
	must.Eq(t, 48, event.EventData)
	must.Eq(t, nvml.EventTypeXidCriticalError, event.EventType)
	must.Eq(t, h200UUID, value[string](t)(event.Device.GetUUID()))
}

func TestLostGPU(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	order(t, "lost", "0", "1")
	_, ret := dev.GetMemoryInfo()
	must.Eq(t, nvml.ERROR_GPU_IS_LOST, ret)
	_, ret = lib.DeviceGetHandleByIndex(0)
	must.Eq(t, nvml.ERROR_GPU_IS_LOST, ret)
	must.Eq(t, 1024*mib, value[nvml.Memory](t)(gpuByUUID(t, lib, t4UUID).GetMemoryInfo()).Total)
	order(t, "lost", "0", "0")
	must.Eq(t, 4096*mib, value[nvml.Memory](t)(dev.GetMemoryInfo()).Total)
}

func TestNoDriver(t *testing.T) {
	dir := newNode(t)
	lib := nvml.New(nvml.WithLibraryPath(library("libnvidia-ml.so.1")))
	must.NoError(t, os.Remove(filepath.Join(dir, "dev/nvidiactl")))
	must.Eq(t, nvml.ERROR_DRIVER_NOT_LOADED, lib.Init())
	must.NoError(t, os.WriteFile(filepath.Join(dir, "dev/nvidiactl"), nil, 0o666))
	must.Eq(t, nvml.SUCCESS, lib.Init())
	must.Eq(t, nvml.SUCCESS, lib.Shutdown())
	order(t, "absent", "1")
	must.Eq(t, nvml.ERROR_DRIVER_NOT_LOADED, lib.Init())
	order(t, "absent", "0")
	must.Eq(t, nvml.SUCCESS, lib.Init())
	must.Eq(t, nvml.SUCCESS, lib.Shutdown())
}

// The library exports every function that nvml.h declares, and nothing else: a consumer that looks one up finds it.
func TestExports(t *testing.T) {
	header, err := os.ReadFile(filepath.Join(buildDir, "sim/obj/nvml/include/nvml.h"))
	must.NoError(t, err)
	// Comments name functions too; a declaration is followed by its parameters.
	source := regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`).ReplaceAll(header, nil)
	declared := map[string]bool{}
	for _, match := range regexp.MustCompile(`\s\*?(nvml[A-Za-z0-9_]+)\s*\([^()]*\)\s*;`).FindAllSubmatch(source, -1) {
		declared[string(match[1])] = true
	}
	must.Greater(t, 400, len(declared))

	file, err := elf.Open(library("libnvidia-ml.so.1"))
	must.NoError(t, err)
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	must.NoError(t, err)
	exported := map[string]bool{}
	for _, symbol := range symbols {
		if symbol.Section != elf.SHN_UNDEF {
			exported[symbol.Name] = true
		}
	}
	must.MapEq(t, declared, exported)
	soname, err := file.DynString(elf.DT_SONAME)
	must.NoError(t, err)
	must.Eq(t, []string{"libnvidia-ml.so.1"}, soname)
}

func TestSMI(t *testing.T) {
	dir := newNode(t)
	process := hold(t, 64*mib)
	smi := func(args ...string) string {
		out, err := exec.Command(tool("nvidia-smi"), args...).CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", out))
		return string(out)
	}
	table := smi()
	must.StrContains(t, table, "SIMULATED")
	must.StrContains(t, table, "364MiB / 4096MiB")
	must.StrContains(t, table, "00000001:3B:00.0")
	must.StrContains(t, table, fmt.Sprint(process.Process.Pid))
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		if line != "" {
			must.Eq(t, 91, len(line), must.Sprintf("%q", line))
		}
	}
	must.Eq(t, "GPU 0: NVIDIA H200 (UUID: "+h200UUID+")\nGPU 1: Tesla T4 (UUID: "+t4UUID+")\n", smi("-L"))
	must.Eq(t, "NVIDIA H200, 4096 MiB, 364 MiB\nTesla T4, 1024 MiB, 0 MiB\n",
		smi("--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"))
	must.Eq(t, "index, uuid\n0, "+h200UUID+"\n1, "+t4UUID+"\n", smi("--query-gpu=index, uuid", "--format=csv"))

	must.NoError(t, process.Process.Kill())
	_ = process.Wait()
	must.NoError(t, os.Remove(filepath.Join(dir, "dev/nvidiactl")))
	out, err := exec.Command(tool("nvidia-smi")).CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(out), "Driver Not Loaded")
}
