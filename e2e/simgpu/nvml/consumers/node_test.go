// Package consumers tests the simulated NVML as its consumers see it: through go-nvml, go-nvlib and nvcdi. It holds
// tests only, and lies beside the library's sources because the Go command takes no C files in a package without cgo.
package consumers

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"
)

const (
	h200UUID = "GPU-11111111-2222-3333-4444-555555555555"
	t4UUID   = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"

	mib = 1 << 20
)

const topology = `driver_version = 570.124.06
cuda_version = 12080
device_number = 10:229

[gpu 0]
name = NVIDIA H200
uuid = ` + h200UUID + `
pci = 0000:19:00.0
minor = 0
memory_mib = 4096
sm_count = 132
compute_capability = 9.0
context_mib = 300

[gpu 1]
name = Tesla T4
uuid = ` + t4UUID + `
pci = 0001:3b:00.0
minor = 3
memory_mib = 1024
sm_count = 40
compute_capability = 7.5
context_mib = 100
`

// buildDir is where `make sim` put its libraries and tools.
var buildDir string

func TestMain(m *testing.M) {
	buildDir = os.Getenv("TRANCHE_BUILD")
	if buildDir == "" {
		root, err := filepath.Abs("../../../..")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		buildDir = filepath.Join(root, "build")
	}
	if root := os.Getenv(cdiRoot); root != "" {
		if err := printSpec(root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	for _, name := range []string{library("libnvidia-ml.so.1"), library("libcuda.so.1"), tool("simgpu")} {
		if _, err := os.Stat(name); err != nil {
			fmt.Fprintf(os.Stderr, "the simulated GPU is not built (%v): run `make sim nvml-sim` first\n", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func library(name string) string {
	return filepath.Join(buildDir, "sim/lib", name)
}

func tool(name string) string {
	return filepath.Join(buildDir, "sim/bin", name)
}

// testProgram is one of the programs of testdata, as the makefile built it.
func testProgram(name string) string {
	return filepath.Join(buildDir, "sim/test", name)
}

// newNode lays out a node with two GPUs, in the environment of this test, and returns its directory.
func newNode(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(dir, "dev"), 0o777))
	for _, node := range []string{"nvidiactl", "nvidia0", "nvidia3"} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "dev", node), nil, 0o666))
	}
	must.NoError(t, os.WriteFile(filepath.Join(dir, "topology"), []byte(topology), 0o644))
	t.Setenv("SIMGPU_TOPOLOGY", filepath.Join(dir, "topology"))
	t.Setenv("SIMGPU_STATE", filepath.Join(dir, "state"))
	t.Setenv("SIMGPU_DEV", filepath.Join(dir, "dev"))
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(buildDir, "sim/lib"))
	return dir
}

// openNVML initialises NVML for the length of the test. Every test loads the same file: go-nvml binds its functions to
// the first library of the process.
func openNVML(t *testing.T) nvml.Interface {
	t.Helper()
	lib := nvml.New(nvml.WithLibraryPath(library("libnvidia-ml.so.1")))
	must.Eq(t, nvml.SUCCESS, lib.Init())
	t.Cleanup(func() { must.Eq(t, nvml.SUCCESS, lib.Shutdown()) })
	return lib
}

func gpuByUUID(t *testing.T, lib nvml.Interface, uuid string) nvml.Device {
	t.Helper()
	dev, ret := lib.DeviceGetHandleByUUID(uuid)
	must.Eq(t, nvml.SUCCESS, ret)
	return dev
}

// order makes something go wrong on the node; see testdata/order.c.
func order(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(testProgram("nvml-order"), args...).CombinedOutput()
	must.NoError(t, err, must.Sprintf("order %v: %s", args, out))
}

// hold starts a process that takes memory of GPU 0 through the simulated CUDA driver, and returns when it has it.
func hold(t *testing.T, bytes int) *exec.Cmd {
	t.Helper()
	return startHolding(t, exec.Command(testProgram("nvml-hold"), fmt.Sprint(bytes)))
}

func startHolding(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	must.NoError(t, err)
	cmd.Stderr = os.Stderr
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	_, err = io.ReadFull(stdout, make([]byte, len("holding\n")))
	must.NoError(t, err)
	return cmd
}
