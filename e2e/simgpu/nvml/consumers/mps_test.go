package consumers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"
)

// startMPS starts the simulated control daemon for the length of the test.
func startMPS(t *testing.T) {
	t.Helper()
	// The path of a socket has an end, which that of a test's own directory may be beyond.
	dir, err := os.MkdirTemp("", "mps")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", filepath.Join(dir, "pipe"))
	t.Setenv("CUDA_MPS_LOG_DIRECTORY", filepath.Join(dir, "log"))
	out, err := exec.Command(tool("nvidia-cuda-mps-control"), "-d").CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	t.Cleanup(func() { mpsControl(t, "quit -t 0") })
}

// mpsControl has the daemon run a command.
func mpsControl(t *testing.T, command string) string {
	t.Helper()
	control := exec.Command(tool("nvidia-cuda-mps-control"))
	control.Stdin = strings.NewReader(command + "\n")
	out, err := control.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s: %s", command, out))
	return string(out)
}

// A process behind MPS is in both lists of NVML's, its server in that of compute processes, with its context.
func TestMPSProcesses(t *testing.T) {
	newNode(t)
	lib := openNVML(t)
	dev := gpuByUUID(t, lib, h200UUID)
	startMPS(t)
	simgpu(t, "set", "0", "compute_mode", fmt.Sprint(int(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)))
	client := hold(t, 64*mib)
	server, err := strconv.Atoi(strings.TrimSpace(mpsControl(t, "get_server_list")))
	must.NoError(t, err)

	shown := map[int]uint64{}
	for _, process := range value[[]nvml.ProcessInfo](t)(dev.GetComputeRunningProcesses()) {
		shown[int(process.Pid)] = process.UsedGpuMemory
	}
	must.Eq(t, map[int]uint64{client.Process.Pid: 364 * mib, server: 300 * mib}, shown)
	must.Eq(t, []nvml.ProcessInfo{{
		Pid:               uint32(client.Process.Pid),
		UsedGpuMemory:     364 * mib,
		GpuInstanceId:     0xFFFFFFFF,
		ComputeInstanceId: 0xFFFFFFFF,
	}}, value[[]nvml.ProcessInfo](t)(dev.GetMPSComputeRunningProcesses()))
	name, ret := lib.SystemGetProcessName(server)
	must.Eq(t, nvml.SUCCESS, ret)
	must.StrContains(t, name, "nvidia-cuda-mps-server")

	out, err := exec.Command(tool("nvidia-smi")).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	must.StrContains(t, string(out), "E. Process |")
	must.StrContains(t, string(out), fmt.Sprintf("%d    M+C   ", client.Process.Pid))
	must.StrContains(t, string(out), fmt.Sprintf("%d      C   ", server))
}
