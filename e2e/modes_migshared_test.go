//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// startMIGShared starts a node with the configuration of examples/mig-shared-agent.hcl.
func startMIGShared(t *testing.T) *node.Node {
	t.Helper()
	text := readFile(t, filepath.Join(build, "../examples/mig-shared-agent.hcl"))
	block := regexp.MustCompile(`(?s)plugin "nomad-device-tranche" \{\n  config \{\n(.*)\n  \}\n\}`).FindStringSubmatch(text)
	must.SliceLen(t, 2, block)
	n := startNode(t, func(c *node.Config) {
		c.Topology = filepath.Join(build, "../e2e/simgpu/topologies/a100-40x8.conf")
		c.DeviceConfig, c.MIG = block[1]+"\n", true
	})
	_, err := n.WaitNode(deadline(t), allHealthy)
	must.NoError(t, err)
	importProgram(t, n, loadImage, "load")
	return n
}

// TestModeMIGShared has tasks share a MIG instance by slices, in memory and in time, beside a task on another instance of the
// GPU. The simulator's record judges.
func TestModeMIGShared(t *testing.T) {
	n := startMIGShared(t)
	byInstance := map[string][]uint64{}
	for _, alloc := range runExample(t, n, "mig-shared", 3) {
		count := map[string]uint64{"tenant": 8, "other": 4}[alloc.TaskGroup]
		said := probed(t, n, alloc.ID)
		must.Eq(t, count*gib, said["gpu"].CUDeviceTotalMem)
		must.StrHasSuffix(t, map[string]string{"tenant": " MIG 3g.20gb", "other": " MIG 2g.10gb"}[alloc.TaskGroup], said["gpu"].Name)
		must.SliceLen(t, int(count), assigned(t, n, alloc.ID).DeviceIDs)

		group, err := n.Group(deadline(t), alloc.ID, "probe")
		must.NoError(t, err)
		record, err := n.Sim.Record(deadline(t))
		must.NoError(t, err)
		held := record.Group(group)
		must.MapLen(t, 1, held)
		for uuid, on := range held {
			must.StrHasPrefix(t, "MIG-", uuid)
			must.LessEq(t, count*gib, on.PeakBytes)
			must.Greater(t, count*gib-2*mib, on.Bytes)
			checkNVMLOfInstance(t, n, alloc.ID, count*gib, on.Bytes)
			byInstance[uuid] = append(byInstance[uuid], count)
		}
	}
	var shared [][]uint64
	for _, counts := range byInstance {
		shared = append(shared, counts)
	}
	slices.SortFunc(shared, func(a, b []uint64) int { return len(a) - len(b) })
	must.Eq(t, [][]uint64{{4}, {8, 8}}, shared)
	checkStatusOfInstances(t, n)
	checkInventoryOfInstances(t, n)

	// What is left of the instance is three slices, though the other has five more.
	eval := start(t, n, task{job: "large", command: "gpu-probe", args: []string{"fill"}, devices: []string{onProfile(4, "3g.20gb")}})
	must.NotEq(t, "", eval.BlockedEval)
	must.NoError(t, n.StopJob(deadline(t), "large"))
	endsClean(t, n, "mig-shared")

	small, large := loadOnInstance(t, n, "small", 4), loadOnInstance(t, n, "large", 12)
	comesTo(t, n, 25, small, large)
}

// migMemory matches lines with memory in the table of nvidia-smi: of a GPU, or of a MIG device.
var migMemory = regexp.MustCompile(` (?:(\d+)MiB|N/A) / (?:(\d+)MiB|N/A) `)

// checkNVMLOfInstance checks what nvidia-smi says in a container: of the instance the container's own memory, of which its limit is
// all, nothing of others' on the GPU, and no other instance.
func checkNVMLOfInstance(t *testing.T, n *node.Node, allocID string, limit, held uint64) {
	t.Helper()
	table := executedIn(t, n, allocID, "probe", "nvidia-smi")
	found := migMemory.FindAllStringSubmatch(table, -1)
	must.SliceLen(t, 2, found, must.Sprint(table))
	must.Eq(t, []string{"", ""}, found[0][1:], must.Sprint(table))
	must.Eq(t, fmt.Sprint(limit/mib), found[1][2], must.Sprint(table))
	used, err := strconv.ParseUint(found[1][1], 10, 64)
	must.NoError(t, err)
	must.Between(t, held/mib, used, limit/mib, must.Sprint(table))
}

func onProfile(slices int, profile string) string {
	return fmt.Sprintf("count = %d\nconstraint {\n attribute = \"${device.attr.mig_profile}\"\n value = \"%s\"\n}", slices, profile)
}

// loadOnInstance starts a job that always wants the larger instance, and returns the name of its container in the record.
func loadOnInstance(t *testing.T, n *node.Node, job string, slices int) string {
	t.Helper()
	start(t, n, task{
		job: job, image: loadImage, command: "load", args: []string{"--kernel", "1000", "--ready"},
		devices: []string{onProfile(slices, "3g.20gb")},
	})
	alloc := running(t, n, job)
	saysLine(t, n, alloc.ID, "ready")
	group, err := n.Group(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	return group
}

// tranche runs the command on a node, and returns its output.
func tranche(t *testing.T, n *node.Node, args ...string) []byte {
	t.Helper()
	args = append(args, "--driver-root", n.DriverRoot(), "--state-dir", n.StateDir(), "--run-dir", n.RunDir())
	cmd := exec.CommandContext(deadline(t), n.Program("tranche"), args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), n.Sim.Env()...), os.Stderr
	output, err := cmd.Output()
	must.NoError(t, err, must.Sprint(args))
	return output
}

// checkStatusOfInstances compares the instances in `tranche status` and `tranche top` with what runs.
func checkStatusOfInstances(t *testing.T, n *node.Node) {
	t.Helper()
	for _, command := range [][]string{{"status", "--json"}, {"top", "--once", "--json"}} {
		output := tranche(t, n, command...)
		var report struct {
			GPUs []struct {
				Name, UUID, Mode, Error string
				Slices                  struct{ Total, Taken, Running int }
				OutsideBytes            uint64 `json:"outside_bytes"`
			}
		}
		must.NoError(t, json.Unmarshal(output, &report), must.Sprint(string(output)))
		found := map[string][2]int{}
		for _, g := range report.GPUs {
			must.Eq(t, "", g.Error, must.Sprint(command))
			must.Zero(t, g.OutsideBytes, must.Sprintf("%s: what uses GPU %s has claims", command, g.UUID))
			if strings.HasPrefix(g.UUID, "MIG-") {
				must.Eq(t, "slice", g.Mode)
				found[g.Name] = [2]int{g.Slices.Taken + g.Slices.Running, g.Slices.Total}
			}
		}
		must.Eq(t, map[string][2]int{
			"NVIDIA A100-SXM4-40GB MIG 3g.20gb": {16, 19}, "NVIDIA A100-SXM4-40GB MIG 2g.10gb": {4, 9},
		}, found, must.Sprint(command))
	}
}

// checkInventoryOfInstances checks that containers outside Nomad can request slices of the instances, and not of their GPU.
func checkInventoryOfInstances(t *testing.T, n *node.Node) {
	t.Helper()
	tranche(t, n, "node-info", "refresh")
	files, err := filepath.Glob(filepath.Join(n.RunDir(), "node/*/gpus.json"))
	must.NoError(t, err)
	must.SliceLen(t, 1, files)
	var gpus []gpuinfo.GPU
	must.NoError(t, json.Unmarshal([]byte(readFile(t, files[0])), &gpus))
	must.SliceLen(t, 2+7, gpus)
	for _, g := range gpus[:2] {
		must.StrHasPrefix(t, "MIG-", g.UUID)
		must.Eq(t, mixedGPUs[0], g.MIGParent)
		must.Positive(t, g.ContextBytes)
	}
}
