package consumers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// The GPUs of mixed.conf.
const (
	a100 = iota
	_
	h100
	t4
)

// migNode lays out a driver root with the GPUs of a topology, in the environment of this test.
func migNode(t *testing.T, topology string) string {
	t.Helper()
	needs.Root(t, "to make MIG instances")
	file, err := filepath.Abs(filepath.Join("../../topologies", topology))
	must.NoError(t, err)
	t.Setenv("SIMGPU_TOPOLOGY", file)
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(buildDir, "sim/lib"))
	root := filepath.Join(t.TempDir(), "root")
	simgpu(t, "root", root)
	t.Setenv("SIMGPU_TOPOLOGY", filepath.Join(root, "run/simgpu/topology"))
	t.Setenv("SIMGPU_STATE", filepath.Join(root, "run/simgpu/state"))
	t.Setenv("SIMGPU_DEV", filepath.Join(root, "dev"))
	return root
}

// simgpu runs the simulator's tool and returns what it printed.
func simgpu(t *testing.T, args ...string) []byte {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command(tool("simgpu"), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.NoError(t, err, must.Sprintf("simgpu %v: %s", args, stderr.String()))
	return out
}

// migRecord is what the simulator's record says of MIG.
type migRecord struct {
	GPUs []struct {
		UUID      string
		Mode      bool
		Pending   bool
		Instances []struct {
			ID        int
			Profile   string
			Start     int
			Size      int
			UsedBytes uint64 `json:"used_bytes"`
			Devices   []struct {
				UUID      string
				Processes []struct {
					PID   int
					Bytes uint64
				}
			} `json:"compute_instances"`
		} `json:"gpu_instances"`
	}
	Events []struct {
		What    string
		PID     int
		GI      int
		Profile string
		TimeNS  uint64 `json:"time_ns"`
	}
}

func readMIGRecord(t *testing.T) migRecord {
	t.Helper()
	var record struct{ MIG migRecord }
	must.NoError(t, json.Unmarshal(simgpu(t, "record", "--json"), &record))
	return record.MIG
}

// partition turns MIG mode on and returns the GPU, whose handle may be another one then.
func partition(t *testing.T, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	gpu := value[nvml.Device](t)(lib.DeviceGetHandleByIndex(index))
	activation, ret := gpu.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, nvml.SUCCESS, activation)
	return value[nvml.Device](t)(lib.DeviceGetHandleByIndex(index))
}

// profileNamed finds a profile of GPU instances by the driver's name.
func profileNamed(t *testing.T, gpu nvml.Device, name string) nvml.GpuInstanceProfileInfo {
	t.Helper()
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := gpu.GetGpuInstanceProfileInfoV(number).V2()
		if ret == nvml.SUCCESS && cString(info.Name[:]) == name {
			return value[nvml.GpuInstanceProfileInfo](t)(gpu.GetGpuInstanceProfileInfo(number))
		}
	}
	t.Fatalf("the GPU has no profile %s", name)
	return nvml.GpuInstanceProfileInfo{}
}

func cString(chars []int8) string {
	var s strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

// makeMIG makes a GPU instance at a place, and a compute instance that is all of it.
func makeMIG(t *testing.T, gpu nvml.Device, profile string, start uint32) (nvml.GpuInstance, nvml.ComputeInstance) {
	t.Helper()
	info := profileNamed(t, gpu, profile)
	places := value[[]nvml.GpuInstancePlacement](t)(gpu.GetGpuInstancePossiblePlacements(&info))
	instance := value[nvml.GpuInstance](t)(gpu.CreateGpuInstanceWithPlacement(&info,
		&nvml.GpuInstancePlacement{Start: start, Size: places[0].Size}))
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		compute, ret := instance.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.SUCCESS && compute.SliceCount == info.SliceCount {
			return instance, value[nvml.ComputeInstance](t)(instance.CreateComputeInstance(&compute))
		}
	}
	t.Fatalf("an instance of %s has no compute profile of %d slices", profile, info.SliceCount)
	return nil, nil
}

func migUUID(t *testing.T, instance nvml.ComputeInstance) string {
	t.Helper()
	info := value[nvml.ComputeInstanceInfo](t)(instance.GetInfo())
	return value[string](t)(info.Device.GetUUID())
}

// An instance is created, used and destroyed, by the answers of NVML and by the simulator's record.
func TestMIG_CreateUseDestroy(t *testing.T) {
	migNode(t, "mixed.conf")
	lib := openNVML(t)
	_, _, ret := value[nvml.Device](t)(lib.DeviceGetHandleByIndex(t4)).GetMigMode()
	must.Eq(t, nvml.ERROR_NOT_SUPPORTED, ret)

	gpu := partition(t, lib, a100)
	instance, compute := makeMIG(t, gpu, "3g.20gb", 4)
	uuid := migUUID(t, compute)
	must.StrHasPrefix(t, "MIG-", uuid)
	mig := gpuByUUID(t, lib, uuid)
	must.True(t, value[bool](t)(mig.IsMigDeviceHandle()))
	must.Eq(t, "NVIDIA A100-SXM4-40GB MIG 3g.20gb", value[string](t)(mig.GetName()))
	must.Eq(t, 42, value[nvml.DeviceAttributes](t)(mig.GetAttributes()).MultiprocessorCount)
	must.Eq(t, 19968*mib, value[nvml.Memory](t)(mig.GetMemoryInfo()).Total)
	must.Eq(t, 2, value[int](t)(mig.GetGpuInstanceId()))
	must.Eq(t, 2, value[nvml.GpuInstanceInfo](t)(value[nvml.GpuInstance](t)(gpu.GetGpuInstanceById(2)).GetInfo()).Id)

	two := profileNamed(t, gpu, "2g.10gb")
	must.Eq(t, 2, value[int](t)(gpu.GetGpuInstanceRemainingCapacity(&two)))
	_, ret = gpu.CreateGpuInstanceWithPlacement(&two, &nvml.GpuInstancePlacement{Start: 4, Size: 2})
	must.Eq(t, nvml.ERROR_INSUFFICIENT_RESOURCES, ret)
	_, ret = gpu.CreateGpuInstanceWithPlacement(&two, &nvml.GpuInstancePlacement{Start: 6, Size: 2})
	must.Eq(t, nvml.ERROR_INVALID_ARGUMENT, ret)
	must.Eq(t, nvml.ERROR_IN_USE, instance.Destroy())

	record := readMIGRecord(t)
	must.True(t, record.GPUs[0].Mode)
	must.Len(t, 1, record.GPUs[0].Instances)
	must.Eq(t, "3g.20gb", record.GPUs[0].Instances[0].Profile)
	must.Eq(t, 4, record.GPUs[0].Instances[0].Start)
	must.Eq(t, uuid, record.GPUs[0].Instances[0].Devices[0].UUID)

	must.Eq(t, nvml.SUCCESS, compute.Destroy())
	must.Eq(t, nvml.SUCCESS, instance.Destroy())
	_, ret = gpu.GetGpuInstanceById(2)
	must.Eq(t, nvml.ERROR_NOT_FOUND, ret)
	_, ret = lib.DeviceGetHandleByUUID(uuid)
	must.Eq(t, nvml.ERROR_NOT_FOUND, ret)
	var what []string
	for _, event := range readMIGRecord(t).Events {
		must.Eq(t, os.Getpid(), event.PID)
		what = append(what, event.What)
	}
	must.Eq(t, []string{"mode", "gi-created", "ci-created", "ci-destroyed", "gi-destroyed"}, what)
}

// A process of CUDA on an instance: nobody destroys it under the process, nor while only its memory is there.
func TestMIGInUse(t *testing.T) {
	migNode(t, "mixed.conf")
	lib := openNVML(t)
	gpu := partition(t, lib, h100)
	instance, compute := makeMIG(t, gpu, "1g.10gb", 0)
	_, idle := makeMIG(t, gpu, "1g.10gb", 1)
	uuid := migUUID(t, compute)
	t.Setenv("CUDA_VISIBLE_DEVICES", uuid)
	process := hold(t, 64*mib)

	mig := gpuByUUID(t, lib, uuid)
	processes := value[[]nvml.ProcessInfo](t)(mig.GetComputeRunningProcesses())
	must.Len(t, 1, processes)
	must.Eq(t, uint32(process.Process.Pid), processes[0].Pid)
	must.Eq(t, 7, processes[0].GpuInstanceId)
	must.Positive(t, processes[0].UsedGpuMemory-64*mib)
	must.SliceEmpty(t, value[[]nvml.ProcessInfo](t)(gpuByUUID(t, lib, migUUID(t, idle)).GetComputeRunningProcesses()))
	found := readMIGRecord(t).GPUs[2].Instances[0]
	must.Eq(t, process.Process.Pid, found.Devices[0].Processes[0].PID)
	must.Eq(t, processes[0].UsedGpuMemory, found.UsedBytes)

	must.Eq(t, nvml.ERROR_IN_USE, compute.Destroy())
	activation, ret := gpu.SetMigMode(nvml.DEVICE_MIG_DISABLE)
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, nvml.ERROR_IN_USE, activation)
	must.NoError(t, process.Process.Kill())
	_ = process.Wait()
	must.Eq(t, nvml.SUCCESS, compute.Destroy())
	must.Eq(t, nvml.SUCCESS, instance.Destroy())
}

// What a GPU of before Hopper waits for, and what a driver that is loaded anew forgets.
func TestMIGModes(t *testing.T) {
	migNode(t, "mixed.conf")
	lib := openNVML(t)
	process := hold(t, mib) // of the first GPU
	gpu := value[nvml.Device](t)(lib.DeviceGetHandleByIndex(a100))
	activation, ret := gpu.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, nvml.ERROR_IN_USE, activation)
	current, pending, ret := gpu.GetMigMode()
	must.Eq(t, nvml.SUCCESS, ret)
	must.Eq(t, []int{nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_ENABLE}, []int{current, pending})
	must.NoError(t, process.Process.Kill())
	_ = process.Wait()

	makeMIG(t, partition(t, lib, a100), "1g.5gb", 0)
	makeMIG(t, partition(t, lib, h100), "1g.10gb", 0)
	simgpu(t, "reload")
	record := readMIGRecord(t)
	must.True(t, record.GPUs[0].Mode)
	must.False(t, record.GPUs[2].Mode)
	must.SliceEmpty(t, record.GPUs[0].Instances)
	_, _, ret = gpu.GetMigMode()
	must.Eq(t, nvml.ERROR_INVALID_ARGUMENT, ret) // the handle is from before
}

// What a test orders to go wrong.
func TestMIGFaults(t *testing.T) {
	migNode(t, "mixed.conf")
	lib := openNVML(t)
	gpu := partition(t, lib, h100)
	simgpu(t, "fault", "mig", "gi-create", "1", fmt.Sprint(int(nvml.ERROR_UNKNOWN)))
	info := profileNamed(t, gpu, "1g.10gb")
	_, ret := gpu.CreateGpuInstance(&info)
	must.Eq(t, nvml.ERROR_UNKNOWN, ret)
	instance := value[nvml.GpuInstance](t)(gpu.CreateGpuInstance(&info))
	simgpu(t, "fault", "mig", "gi-destroy", "1", fmt.Sprint(int(nvml.ERROR_IN_USE)))
	must.Eq(t, nvml.ERROR_IN_USE, instance.Destroy())
	must.Eq(t, nvml.SUCCESS, instance.Destroy())
}

// go-nvlib computes the names of profiles from memory and slices; they are the driver's.
func TestMIGNamesOfGoNvlib(t *testing.T) {
	for topology, name := range map[string]string{"a30x8.conf": "2g.12gb", "a100-80x8.conf": "3g.40gb",
		"h100x8.conf": "3g.40gb", "h200x8.conf": "3g.71gb", "b200x8.conf": "3g.90gb"} {
		t.Run(topology, func(t *testing.T) {
			migNode(t, topology)
			lib := openNVML(t)
			makeMIG(t, partition(t, lib, 0), name, 0)
			devices, err := device.New(lib).GetMigDevices()
			must.NoError(t, err)
			must.Len(t, 1, devices)
			profile, err := devices[0].GetProfile()
			must.NoError(t, err)
			must.Eq(t, name, profile.String())
		})
	}
}

// specOf has nvcdi write a spec in a process that sees the driver root's /proc/driver, and returns its devices' nodes.
func specOf(t *testing.T, root string) map[string][]string {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount --bind "$0" /proc/driver && exec "$@"`,
		filepath.Join(root, "proc/driver"), os.Args[0])
	cmd.Env = append(os.Environ(), cdiRoot+"="+root)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.NoError(t, err, must.Sprint(stderr.String()))
	var nodes map[string][]string
	must.NoError(t, json.Unmarshal(out, &nodes))
	return nodes
}

// cdiRoot makes the test program such a process.
const cdiRoot = "CONSUMERS_CDI_ROOT"

func printSpec(root string) error {
	byUUID, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return err
	}
	cdi, err := nvcdi.New(nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithDriverRoot(root), nvcdi.WithDevRoot(root),
		nvcdi.WithNvmlLib(nvml.New(nvml.WithLibraryPath(library("libnvidia-ml.so.1")))), nvcdi.WithDeviceNamers(byUUID),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils))
	if err != nil {
		return err
	}
	spec, err := cdi.GetSpec()
	if err != nil {
		return err
	}
	nodes := map[string][]string{}
	for _, dev := range spec.Raw().Devices {
		for _, node := range dev.ContainerEdits.DeviceNodes {
			nodes[dev.Name] = append(nodes[dev.Name], node.Path)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(nodes)
}

// An instance that is made later is in the next spec, with the nodes of its capabilities, and gone from the one after.
func TestNvcdiSeesInstancesComeAndGo(t *testing.T) {
	root := migNode(t, "mixed.conf")
	lib := openNVML(t)
	gpu := partition(t, lib, h100)
	instance, compute := makeMIG(t, gpu, "2g.20gb", 2)
	uuid := migUUID(t, compute)
	// 135 capabilities of each GPU before it, 9 of each GPU instance.
	gi := 3 + 2*135 + 4*9
	must.SliceContainsAll(t, specOf(t, root)[uuid], []string{"/dev/nvidia2",
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi+1)})
	must.Eq(t, nvml.SUCCESS, compute.Destroy())
	must.Eq(t, nvml.SUCCESS, instance.Destroy())
	must.MapNotContainsKey(t, specOf(t, root), uuid)
	must.FileNotExists(t, filepath.Join(root, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", gi)))
}

func TestSMIOfMIG(t *testing.T) {
	migNode(t, "mixed.conf")
	smi := func(args ...string) string {
		out, err := exec.Command(tool("nvidia-smi"), args...).CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", out))
		return string(out)
	}
	must.StrContains(t, smi("-i", "0", "-mig", "1"), "Enabled MIG Mode for GPU 0")
	must.StrContains(t, smi("mig", "-cgi", "9,2g.10gb,19:0", "-C"), "GPU instance ID  4 on GPU  0 using profile MIG 2g.10gb")
	list := smi("-L")
	for _, line := range []string{"  MIG 3g.20gb     Device  0: (UUID: MIG-", "  MIG 2g.10gb     Device  1: (UUID: MIG-",
		"  MIG 1g.5gb      Device  2: (UUID: MIG-"} {
		must.StrContains(t, list, line)
	}
	must.StrContains(t, smi("mig", "-lgip"), "MIG 1g.5gb           19     1/7")
	must.StrContains(t, smi("mig", "-lgipp"), "GPU  0 Profile ID  9 Placements: {0,4}:4")
	must.StrContains(t, smi("mig", "-lgi"), "MIG 3g.20gb           9        2          4:4")
	must.StrContains(t, smi("mig", "-lci"), "7  MIG 1g.5gb            0        0          0:1")
	out, err := exec.Command(tool("nvidia-smi"), "mig", "-dgi").CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(out), "In use by another client")
	smi("mig", "-dci", "-gi", "4")
	smi("mig", "-dgi", "-gi", "4")
	list = smi("-L")
	must.StrNotContains(t, list, "2g.10gb")
	must.StrContains(t, list, "3g.20gb")
	smi("mig", "-dci")
	smi("mig", "-dgi")
	must.Eq(t, "", smi("mig", "-lgi"))
}
