package wrapper_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	simgpu "github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// The GPUs of the topologies in e2e/simgpu.
const (
	h200First  = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000000"
	h200Second = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001"
	migBig     = "MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a01"
	migSmall   = "MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a02"
)

// nvidiaNode is a node with simulated GPUs, Tranche's own shadow libraries, and containers that use the GPU. Whatever a
// test says of their memory is the simulator's record.
type nvidiaNode struct {
	*node
	build string
}

// newNVIDIANode makes a node with the GPUs of a topology, and a CDI spec that names them.
func newNVIDIANode(t *testing.T, next, topology string) *nvidiaNode {
	t.Helper()
	n := &nvidiaNode{node: newContainerNode(t, next), build: os.Getenv("TRANCHE_BUILD")}
	if n.build == "" {
		n.build = "../../build"
	}
	for _, built := range []string{"sim/bin/simgpu", "lib/libcuda.so.1", "e2e/gpu-probe"} {
		_, err := os.Stat(n.built(built))
		needs.That(t, err == nil, n.built(built)+" (make test-setup)")
	}
	n.cfg.DriverRoot, n.cfg.ShadowDir = n.path("driver"), n.built("lib")
	file, err := filepath.Abs("../../e2e/simgpu/topologies/" + topology)
	must.NoError(t, err)
	cmd := exec.Command(n.built("sim/bin/simgpu"), "root", n.cfg.DriverRoot)
	cmd.Env = append(os.Environ(), "SIMGPU_TOPOLOGY="+file)
	n.must(cmd)
	// The kernel module's part of /proc, for whoever runs a container.
	n.prefix = append([]string{"unshare", "--mount", "sh", "-c",
		`mount --bind "$0" /proc/driver && exec "$@"`, filepath.Join(n.cfg.DriverRoot, "proc/driver")}, n.prefix...)
	// tranche-runtime gives the command tranche no environment, and the simulator takes its settings from there.
	script := n.path("tranche-on-simulated-gpus")
	runtimetest.WriteFile(t, script, "#!/bin/sh\nexec env "+strings.Join(n.simEnv(), " ")+" "+n.cfg.CLIPath+" \"$@\"\n")
	n.cfg.CLIPath = script
	n.configure(next)
	return n
}

func (n *nvidiaNode) built(name string) string {
	file, err := filepath.Abs(filepath.Join(n.build, name))
	must.NoError(n.t, err)
	return file
}

// simEnv is the environment in which a process of the host finds the GPUs.
func (n *nvidiaNode) simEnv() []string {
	return []string{
		"SIMGPU_TOPOLOGY=" + filepath.Join(n.cfg.DriverRoot, "run/simgpu/topology"),
		"SIMGPU_STATE=" + filepath.Join(n.cfg.DriverRoot, "run/simgpu/state"),
		"SIMGPU_DEV=" + filepath.Join(n.cfg.DriverRoot, "dev"),
	}
}

// probe is a bundle of a container that lists its device nodes and driver libraries and then takes all memory of its GPUs.
func (n *nvidiaNode) probe(name string, env ...string) string {
	n.t.Helper()
	bundle := n.image(n.bundle(name, `
cd /dev; echo "nodes: $(busybox find * -name 'nvidia*' -type c | busybox sort | busybox tr '\n' ' ')"
exec /bin/gpu-probe fill`, env...))
	files := map[string]string{"/bin/gpu-probe": n.built("e2e/gpu-probe")}
	listed := n.must(exec.Command("ldd", n.built("e2e/gpu-probe")))
	for _, field := range strings.Fields(listed) {
		if filepath.IsAbs(field) {
			files[field] = field
			files[filepath.Join(filepath.Dir(field), "libdl.so.2")] = filepath.Join(filepath.Dir(field), "libdl.so.2")
		}
	}
	// NVIDIA's runtime refuses what it does not know.
	n.edit(bundle, func(spec map[string]any) { delete(spec, "future") })
	for at, file := range files {
		content, err := os.ReadFile(file)
		if err == nil {
			runtimetest.WriteFile(n.t, filepath.Join(bundle, "rootfs", at), string(content))
		}
	}
	return bundle
}

// simulated mounts the simulated GPUs' memory, which a CDI spec of the simulator's brings and one of nvcdi's does not.
func (n *nvidiaNode) simulated(bundle string) string {
	n.edit(bundle, func(spec map[string]any) {
		spec["mounts"] = append(spec["mounts"].([]any), map[string]any{
			"destination": "/run/simgpu", "type": "bind", "options": []string{"rbind", "rw"},
			"source": filepath.Join(n.cfg.DriverRoot, "run/simgpu"),
		})
	})
	return bundle
}

// edit changes a bundle's spec.
func (n *node) edit(bundle string, change func(spec map[string]any)) {
	n.t.Helper()
	file := filepath.Join(bundle, "config.json")
	spec := map[string]any{}
	must.NoError(n.t, json.Unmarshal([]byte(readFile(n.t, file)), &spec))
	change(spec)
	content, err := json.Marshal(spec)
	must.NoError(n.t, err)
	runtimetest.WriteFile(n.t, file, string(content))
}

// fills starts the container of a probe, waits until it has all the memory that it gets, and returns the device nodes
// that it saw.
func (n *nvidiaNode) fills(id, bundle string) string {
	n.t.Helper()
	must.NoError(n.t, n.create(id, bundle), must.Func(func() string { return n.output(id) }))
	n.must(n.oci("start", id))
	n.waitFor("the probe has filled its GPUs: "+id, func() bool {
		return strings.Contains(n.output(id), `"computing"`) || n.status(id) == "stopped"
	})
	must.StrContains(n.t, n.output(id), `"computing"`)
	_, nodes, _ := strings.Cut(n.output(id), "nodes: ")
	nodes, _, _ = strings.Cut(nodes, "\n")
	return strings.TrimSpace(nodes)
}

// peaks are the most bytes that containers ever held of each GPU, by the simulator's record. What the command tranche
// held on the host, to measure what a context costs, is no container's.
func (n *nvidiaNode) peaks() map[string]uint64 {
	n.t.Helper()
	cmd := exec.Command(n.built("sim/bin/simgpu"), "record", "--json")
	cmd.Env = append(os.Environ(), n.simEnv()...)
	var record struct {
		Groups []struct {
			Group string
			GPU   string `json:"gpu_uuid"`
			Peak  uint64 `json:"peak_bytes"`
		}
	}
	must.NoError(n.t, json.Unmarshal([]byte(n.must(cmd)), &record))
	host, err := simgpu.PIDNamespace(os.Getpid())
	must.NoError(n.t, err)
	peaks := map[string]uint64{}
	for _, group := range record.Groups {
		if !strings.HasPrefix(group.Group, "pidns:"+host+":") {
			peaks[group.GPU] += group.Peak
		}
	}
	return peaks
}

// limitOf is what a claim here allows: 1 GiB, all of which a probe takes.
const limitOf = 1 << 30

// claimOn makes a claim on a GPU, which knows what a context costs as the device plugin does.
func (n *nvidiaNode) claimOn(uuid string) (*claim.Claim, string) {
	n.t.Helper()
	made, token, err := n.ledger.Reserve(n.t.Context(), claim.Request{
		GPU:        claim.GPU{UUID: uuid, Name: "NVIDIA H200", ContextBytes: 300 << 20},
		Slices:     []string{uuid + "/slice-000"},
		LimitBytes: limitOf,
		Owner:      claim.OwnerNomad,
	})
	must.NoError(n.t, err)
	return made, token.EnvName() + "=" + token.Reveal()
}
