package wrapper_test

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// The UUIDs of the GPUs of the topology that these tests use.
const (
	simulatedGPU = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000000"
	secondGPU    = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001"
)

// simulatedNVML gives the node's driver root the NVML of the simulated GPU and device nodes, and takes its CDI spec
// away.
func (n *node) simulatedNVML() {
	n.t.Helper()
	build := os.Getenv("TRANCHE_BUILD")
	if build == "" {
		build = "../../build"
	}
	library, err := os.ReadFile(filepath.Join(build, "sim/lib/libnvidia-ml.so.1"))
	needs.That(n.t, err == nil, "the simulated GPU (make sim)")
	topology, err := filepath.Abs("../../e2e/simgpu/topologies/h200x2.conf")
	must.NoError(n.t, err)

	root := n.cfg.DriverRoot
	must.NoError(n.t, os.RemoveAll(filepath.Join(root, "etc/cdi")))
	nvml := filepath.Join(root, runtimetest.LibDir, "libnvidia-ml.so.570.124.06")
	must.NoError(n.t, os.WriteFile(nvml, library, 0o755))
	must.NoError(n.t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	must.NoError(n.t, os.Mkdir(n.path("dev"), 0o755))
	for _, name := range []string{"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"} {
		must.NoError(n.t, unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		// The simulator opens these, which the file system of temporary files need not allow for devices of its own.
		must.NoError(n.t, os.Symlink(os.DevNull, filepath.Join(n.path("dev"), name)))
	}
	// tranche-runtime gives the command no environment, and the simulator takes its settings from there.
	script := n.path("tranche-on-simulated-gpus")
	runtimetest.WriteFile(n.t, script, "#!/bin/sh\necho asked >>"+n.path("asked")+"\ncat /proc/$$/environ >"+n.path("environ")+"\n"+
		"exec env SIMGPU_TOPOLOGY="+topology+" SIMGPU_STATE="+n.path("simgpu-state")+" SIMGPU_DEV="+n.path("dev")+
		" "+n.cfg.CLIPath+" \"$@\"\n")
	n.cfg.CLIPath = script
	n.configure(n.next)
}

// asked is how often NVML was asked, or a hook of NVIDIA's was run.
func (n *node) asked() int {
	n.t.Helper()
	return strings.Count(readFile(n.t, n.path("asked")), "asked")
}

// fault orders a fault of the simulated GPUs.
func (n *node) fault(args ...string) {
	n.t.Helper()
	topology, err := filepath.Abs("../../e2e/simgpu/topologies/h200x2.conf")
	must.NoError(n.t, err)
	tool := exec.Command(filepath.Join(cmp.Or(os.Getenv("TRANCHE_BUILD"), "../../build"), "sim/bin/simgpu"), append([]string{"fault"}, args...)...)
	tool.Env = append(os.Environ(), "SIMGPU_TOPOLOGY="+topology, "SIMGPU_STATE="+n.path("simgpu-state"), "SIMGPU_DEV="+n.path("dev"))
	out, err := tool.CombinedOutput()
	must.NoError(n.t, err, must.Sprintf("%s", out))
}

// A GPU that fell off the bus keeps no container from another one. Who wants it is told that it does not answer.
func TestContainer_GeneratedSpec_LostGPU(t *testing.T) {
	for _, lost := range []string{"0", "1"} {
		t.Run("number "+lost, func(t *testing.T) {
			n := newContainerNode(t, "runc")
			n.simulatedNVML()
			healthy, gone := secondGPU, simulatedGPU
			if lost == "1" {
				healthy, gone = simulatedGPU, secondGPU
			}
			n.fault("lost", lost, "on")
			_, env := n.reserve(healthy, "slice-000")
			bundle := n.image(n.bundle("b", "busybox echo /dev/nvidia[0-9]", env))
			must.Eq(t, "/dev/nvidia"+string('1'-lost[0]+'0')+"\n", n.must(n.oci("run", "--bundle", bundle, "c1")))
			gpus, err := n.cfg.GPUs(t.Context())
			must.NoError(t, err)
			must.Len(t, 1, gpus)
			must.Eq(t, healthy, gpus[0].UUID)

			_, env = n.reserve(gone, "slice-000")
			bundle = n.image(n.bundle("gone", "busybox echo /dev/nvidia[0-9]", env))
			message := n.fails(n.oci("run", "--bundle", bundle, "c2"))
			for _, want := range []string{gone, "do not answer: #" + lost, "GPU is lost"} {
				must.StrContains(t, message, want)
			}
			n.fault("clear")
			must.Eq(t, "/dev/nvidia"+lost+"\n", n.must(n.oci("run", "--bundle", bundle, "c2")))
		})
	}
}

func TestContainer_GeneratedSpec_NoGPUAnswers(t *testing.T) {
	n := newContainerNode(t, "runc")
	n.simulatedNVML()
	n.fault("lost", "0", "on")
	n.fault("lost", "1", "on")
	_, env := n.reserve(simulatedGPU, "slice-000")
	message := n.fails(n.oci("run", "--bundle", n.image(n.bundle("b", "true", env)), "c1"))
	must.StrContains(t, message, "GPU is lost")
}

// Without a CDI spec on the node, one is generated through NVML, and tranche-hook does what its hooks are for.
func TestContainer_GeneratedSpec(t *testing.T) {
	n := newContainerNode(t, "runc")
	n.simulatedNVML()
	_, env := n.reserve(simulatedGPU, "slice-000")
	bundle := n.image(n.bundle("b", `
cd `+runtimetest.LibDir+`
echo "nodes: $(busybox echo /dev/nvidia*)"
echo "shadow: $(busybox tail -n 1 libcuda.so.570.124.06)"
echo "real: $(busybox cat .tranche/driver-libcuda.so)"
echo "links: $(busybox readlink libcuda.so) $(busybox readlink libnvidia-ml.so.1)"
`, env, "NVIDIA_GPU_MEMORY_LIMIT=1"))
	must.Eq(t, `nodes: /dev/nvidia-uvm /dev/nvidia0 /dev/nvidiactl
shadow: shadow libcuda
real: driver's libcuda
links: libcuda.so.1 libnvidia-ml.so.570.124.06
`, n.must(n.oci("run", "--bundle", bundle, "c1")))

	var spec specs.Spec
	must.NoError(t, json.Unmarshal([]byte(readFile(t, filepath.Join(bundle, "config.json"))), &spec))
	var names []string
	batches := 0
	for _, hook := range append(spec.Hooks.CreateContainer, spec.Hooks.CreateRuntime...) {
		if hook.Path == n.cfg.HookPath {
			continue // ours, see shadowedCopies
		}
		batches++
		must.Eq(t, n.cfg.CLIPath, hook.Path)
		must.Eq(t, []string{"cdi-hook", edit.HookBatch}, hook.Args[1:3])
		must.SliceNotEmpty(t, hook.Env)
		for _, call := range hook.Args[3:] {
			var args []string
			must.NoError(t, json.Unmarshal([]byte(call), &args))
			names = append(names, args[0])
		}
	}
	// Once for NVML, and once for all hooks that run at the same time.
	must.Eq(t, 1+batches, n.asked())
	must.Eq(t, 1, batches)
	must.SliceContainsAll(t, names, []string{
		"create-symlinks", "update-ldcache", "disable-device-node-modification",
	})
}

// The command that makes the CDI spec also lists the GPUs, for those who ask without Nomad.
func TestNodeInfo_GPUs(t *testing.T) {
	n := newNode(t, "/bin/true")
	n.simulatedNVML()
	for range 2 {
		gpus, err := n.cfg.GPUs(t.Context())
		must.NoError(t, err)
		must.Len(t, 2, gpus)
		must.Eq(t, simulatedGPU, gpus[0].UUID)
		must.Eq(t, 1, gpus[1].Index)
		must.StrContains(t, gpus[0].Name, "H200")
		must.Positive(t, gpus[0].UsableBytes)
		must.Less(t, gpus[0].UsableBytes, gpus[0].ContextBytes)
		must.NotEq(t, "", gpus[0].PCIBusID)
		must.NotEq(t, "", gpus[0].ComputeCapability)
		must.Eq(t, 1, n.asked())
	}
	must.Eq(t, "", readFile(t, n.path("environ")), must.Sprint("a container engine may have let a job fill it"))

	must.NoError(t, os.RemoveAll(filepath.Join(n.cfg.RunDir, "node")))
	n.cfg.CLIPath = "/nonexistent/tranche"
	_, err := n.cfg.GPUs(t.Context())
	must.ErrorContains(t, err, "/nonexistent/tranche")
	must.ErrorContains(t, err, "cli_path")
}

func TestContainer_GeneratedSpec_UnknownGPU(t *testing.T) {
	n := newContainerNode(t, "runc")
	n.simulatedNVML()
	_, env := n.reserve(runtimetest.GPU0, "slice-000")
	bundle := n.image(n.bundle("b", "true", env))
	message := n.fails(n.oci("run", "--bundle", bundle, "c1"))
	for _, want := range []string{runtimetest.GPU0, n.cfg.DriverRoot, "etc/cdi", "none can be generated"} {
		must.StrContains(t, message, want)
	}
	must.Eq(t, 1, strings.Count(message, "\n"))
}

// A node's CDI spec that numbers the GPUs says nothing about which of them a claim's is.
func TestContainer_GeneratedSpec_NotByIndex(t *testing.T) {
	n := newContainerNode(t, "runc")
	n.simulatedNVML()
	root := n.cfg.DriverRoot
	runtimetest.WriteCDISpec(t, filepath.Join(root, "etc/cdi/gpus.json"), root, func(spec string) string {
		return strings.NewReplacer(`"/dev/nvidia0"`, `"/dev/another"`, `"/dev/nvidia1"`, `"/dev/another"`).Replace(spec)
	})
	_, env := n.reserve(simulatedGPU, "slice-000")
	bundle := n.image(n.bundle("b", "busybox ls /dev | busybox grep -e nvidia0 -e another", env))
	must.Eq(t, "nvidia0\n", n.must(n.oci("run", "--bundle", bundle, "c1")))
}
