package device

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

// A container that starts with the reservation's environment gets the nodes of its own instance, and of no other; one that is
// made in the place of an earlier one, which may have its UUID, too.
func TestDemandSim_Container(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		g := n.gpus()[1]
		var seen []string
		for range 2 {
			n.look()
			a, b := n.reserve(g, 0), n.reserve(g, 1, 2)
			for _, c := range []*claim.Claim{a, b} {
				must.Eq(t, n.capabilities(c), n.capsOf(c))
				seen = append(seen, c.GPU.UUID)
			}
			n.unattended()
			must.SliceEmpty(t, n.record(1))
			n.later(0)
		}
		must.Eq(t, seen[:2], seen[2:], must.Sprint("the driver gave the UUIDs anew"))
		_, err := n.edits(&claim.Claim{ID: "00000000", GPU: claim.GPU{UUID: seen[0]}, Mode: claim.ModeMIG, Unlimited: true})
		must.ErrorContains(t, err, seen[0], must.Sprint("the instance is gone"))
	})
}

// capabilities are the nodes of a claim's instance by the kernel module's list.
func (n *simNode) capabilities(c *claim.Claim) []string {
	n.t.Helper()
	minors, err := os.ReadFile(filepath.Join(n.sim.DriverRoot, "proc/driver/nvidia-caps/mig-minors"))
	must.NoError(n.t, err)
	nodes := []string{}
	gi := fmt.Sprintf("gpu%d/gi%d/", c.GPU.Index, c.MIG.GPUInstance)
	for line := range strings.Lines(string(minors)) {
		name, minor, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == gi+"access" || name == fmt.Sprintf("%sci%d/access", gi, c.MIG.ComputeInstance) {
			nodes = append(nodes, "/dev/nvidia-caps/nvidia-cap"+minor)
		}
	}
	must.Len(n.t, 2, nodes)
	slices.Sort(nodes)
	return nodes
}

// capsOf are the capabilities that a container with a claim gets.
func (n *simNode) capsOf(c *claim.Claim) []string {
	n.t.Helper()
	spec, err := n.edits(c)
	must.NoError(n.t, err)
	nodes := []string{}
	for _, d := range spec.Linux.Devices {
		if strings.Contains(d.Path, "nvidia-cap") {
			nodes = append(nodes, d.Path)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// edits edits the OCI spec of a container with a claim, in a process for which the kernel module says in /proc what the
// simulated one does.
func (n *simNode) edits(c *claim.Claim) (*specs.Spec, error) {
	n.t.Helper()
	build, err := filepath.Abs("../build")
	must.NoError(n.t, err)
	// Who asks NVML for the node gets no environment, and the simulator takes its settings from there.
	env := []string{"LD_LIBRARY_PATH="}
	for _, name := range []string{"SIMGPU_TOPOLOGY", "SIMGPU_STATE", "SIMGPU_DEV"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	script := filepath.Join(n.t.TempDir(), "tranche")
	must.NoError(n.t, os.WriteFile(script,
		fmt.Appendf(nil, "#!/bin/sh\nexec env %s %s/bin/tranche \"$@\"\n", strings.Join(env, " "), build), 0o755))
	order, err := json.Marshal(editOrder{
		DriverRoot: n.sim.DriverRoot, Build: build, CLIPath: script, StateDir: n.node().stateDir, RunDir: n.node().runDir, Claim: c,
	})
	must.NoError(n.t, err)
	command := exec.CommandContext(n.t.Context(), "unshare", "--mount", "sh", "-c",
		`mount --bind "$0" /proc/driver && exec "$1"`, filepath.Join(n.sim.DriverRoot, "proc/driver"), os.Args[0])
	command.Env = append(os.Environ(), childEdits+"="+string(order))
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	spec := new(specs.Spec)
	return spec, json.Unmarshal(output, spec)
}

// childEdits is what such a process is to edit.
const childEdits = "TRANCHE_TEST_EDIT_SPEC"

type editOrder struct {
	DriverRoot, Build, CLIPath, StateDir, RunDir string
	Claim                                        *claim.Claim
}

// editMain prints the edited spec.
func editMain(text string) error {
	var order editOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		return err
	}
	modifier, err := runtime.Edits(context.Background(), runtime.Config{Node: edit.Node{
		DriverRoot: order.DriverRoot, CLIPath: order.CLIPath, StateDir: order.StateDir, RunDir: order.RunDir,
		HookPath: filepath.Join(order.Build, "bin/tranche-hook"), ShadowDir: filepath.Join(order.Build, "lib"),
	}}, []edit.Claim{{Claim: order.Claim}})
	if err != nil {
		return err
	}
	spec := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}, Root: &specs.Root{Path: "rootfs"}}
	if err := modifier.Modify(spec); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(spec)
}
