//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"tranche.dev/tranche/e2e/node"
)

// The GPUs of the topology mixed8.conf, by their index.
var mixedGPUs = []string{
	"GPU-51d40f7e-a140-4e6b-9f3d-5a1e00000000", "GPU-51d40f7e-a140-4e6b-9f3d-5a1e00000001",
	"GPU-51d40f7e-0100-4e6b-9f3d-5a1e00000002", "GPU-51d40f7e-0100-4e6b-9f3d-5a1e00000003",
	"GPU-51d40f7e-0200-4e6b-9f3d-5a1e00000004", "GPU-51d40f7e-0200-4e6b-9f3d-5a1e00000005",
	"GPU-51d40f7e-0200-4e6b-9f3d-5a1e00000006", "GPU-51d40f7e-0004-4e6b-9f3d-5a1e00000007",
}

// startMixed starts a node whose eight GPUs are shared as examples/mixed-agent.hcl says.
func startMixed(t *testing.T, change ...func(*node.Config)) *node.Node {
	t.Helper()
	text := readFile(t, filepath.Join(build, "../examples/mixed-agent.hcl"))
	block := regexp.MustCompile(`(?s)plugin "nomad-device-tranche" \{\n  config \{\n(.*)\n  \}\n\}`).FindStringSubmatch(text)
	must.SliceLen(t, 2, block)
	return startNode(t, append([]func(*node.Config){func(c *node.Config) {
		c.Topology = filepath.Join(build, "../e2e/simgpu/topologies/mixed8.conf")
		c.DeviceConfig = block[1] + "\n"
		c.Proc = true
	}}, change...)...)
}

// runExample runs an example as it stands and waits until so many of its allocations run.
func runExample(t *testing.T, n *node.Node, name string, count int) []*api.AllocationListStub {
	t.Helper()
	job, err := n.Job(filepath.Join(build, "../examples", name+".nomad.hcl"))
	must.NoError(t, err)
	eval, err := n.Run(deadline(t), job)
	must.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			_ = n.StopJob(deadline(t), name)
		}
	})
	must.Eq(t, "", eval.BlockedEval, must.Sprintf("%s is not placed: %+v", name, eval.FailedTGAllocs))
	return allRunning(t, n, name, count)
}

// allRunning waits until so many allocations of a job run, and fails at once when one has ended.
func allRunning(t *testing.T, n *node.Node, job string, count int) (running []*api.AllocationListStub) {
	t.Helper()
	var ended *api.AllocationListStub
	_, err := n.WaitAllocs(deadline(t), job, func(all []*api.AllocationListStub) bool {
		running = nil
		for _, a := range all {
			if a.DesiredStatus != api.AllocDesiredStatusRun {
				continue // of a run before this one
			}
			switch a.ClientStatus {
			case api.AllocClientStatusRunning:
				running = append(running, a)
			case api.AllocClientStatusFailed, api.AllocClientStatusComplete, api.AllocClientStatusLost:
				ended = a
			}
		}
		return len(running) == count || ended != nil
	})
	must.NoError(t, err, must.Sprintf("waiting for %d allocations of %s", count, job))
	if ended != nil {
		t.Fatalf("job %s does not stay: %s", job, node.Story(ended))
	}
	return running
}

// probeLine is what gpu-probe writes.
type probeLine struct {
	Event            string `json:"event"`
	Name             string `json:"name"`
	GPUs             int    `json:"gpus"`
	CUDeviceTotalMem uint64 `json:"cuDeviceTotalMem"`
	NVML             struct {
		Total uint64 `json:"total"`
	} `json:"nvml"`
	Taken uint64 `json:"taken"`
}

// probed is what the gpu-probe of an example has said by the time that it computes, by event.
func probed(t *testing.T, n *node.Node, allocID string) map[string]probeLine {
	t.Helper()
	said := map[string]probeLine{}
	var failure error
	err := n.Lines(deadline(t), allocID, "probe", func(text string) bool {
		var line probeLine
		if failure = json.Unmarshal([]byte(text), &line); failure == nil && line.Event == "error" {
			failure = fmt.Errorf("the probe says %s", text)
		}
		said[line.Event] = line
		return failure != nil || line.Event == "computing"
	})
	must.NoError(t, err)
	must.NoError(t, failure)
	return said
}

// assigned are the devices of an example's allocation, as Nomad has them.
func assigned(t *testing.T, n *node.Node, allocID string) *api.AllocatedDeviceResource {
	t.Helper()
	info, _, err := n.Agent.API.Allocations().Info(allocID, nil)
	must.NoError(t, err)
	devices := info.AllocatedResources.Tasks["probe"].Devices
	must.Len(t, 1, devices)
	return devices[0]
}

// modeExample is an example of a way to share a GPU, and what has to come of it.
type modeExample struct {
	name string
	// count is how many allocations it has; each has devices of the group.
	count, devices int
	group          string
	// gpu is the index of the GPU that all are on.
	gpu int
	// on is what the simulator calls the GPU or instance, given the ID of the first device.
	on func(id string) string
	// seesName and sees are the name and the memory of the GPU in the container, to which NVML adds what the driver keeps for
	// itself. The program holds as much as takes says, or less than slack short of it.
	seesName                     string
	sees, reserved, takes, slack uint64
}

func itself(id string) string { return id }
func ofGPU(id string) string  { return strings.Split(id, "/")[0] }

// modeExamples are those of the modes on a node of examples/mixed-agent.hcl.
var modeExamples = []modeExample{
	{
		name: "exclusive", count: 1, devices: 1, group: "nvidia/gpu/NVIDIA H100 80GB HBM3", gpu: 3, on: itself,
		seesName: "NVIDIA H100 80GB HBM3", sees: 81079 * mib, reserved: 480 * mib, takes: 81079 * mib, slack: 2 * mib,
	},
	{
		name: "timeslice", count: 2, devices: 1, group: "nvidia/timeslice/Tesla T4 #7", gpu: 7, on: ofGPU,
		seesName: "Tesla T4", sees: 14927 * mib, reserved: 433 * mib, takes: (4096 + 160) * mib, slack: 1,
	},
	{
		name: "constraints", count: 1, devices: 16, group: "nvidia/slice/NVIDIA H200 #6", gpu: 6, on: ofGPU,
		seesName: "NVIDIA H200", sees: 16 * gib, takes: 16 * gib, slack: 2 * mib,
	},
	{
		name: "mig", count: 1, devices: 1, group: "nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 3g.20gb", gpu: 0, on: itself,
		seesName: "NVIDIA A100-SXM4-40GB MIG 3g.20gb", sees: 19968 * mib, takes: 19968 * mib, slack: 2 * mib,
	},
}

// TestModes runs the example of each mode as it stands, alone; then all of them at the same time, on the same node.
func TestModes(t *testing.T) {
	n := startMixed(t)
	for _, e := range modeExamples {
		t.Run(e.name, func(t *testing.T) {
			e.check(t, n, runExample(t, n, e.name, e.count))
			endsClean(t, n, e.name)
		})
	}
	t.Run("at the same time", func(t *testing.T) {
		allocs := map[string][]*api.AllocationListStub{}
		var names []string
		for _, e := range modeExamples {
			allocs[e.name] = runExample(t, n, e.name, e.count)
			names = append(names, e.name)
		}
		for _, e := range modeExamples {
			e.check(t, n, allocs[e.name])
		}
		endsClean(t, n, names...)
	})
	t.Run("exclusive is for one", func(t *testing.T) { testExclusive(t, n) })
	t.Run("max_slices", func(t *testing.T) { testMaxSlices(t, n) })
}

// check has Nomad, the container and the simulator say what the running example has.
func (e *modeExample) check(t *testing.T, n *node.Node, allocs []*api.AllocationListStub) {
	t.Helper()
	given := map[string]bool{}
	for _, alloc := range allocs {
		said := probed(t, n, alloc.ID)
		device := assigned(t, n, alloc.ID)
		must.Eq(t, e.group, strings.Join([]string{device.Vendor, device.Type, device.Name}, "/"))
		must.Len(t, e.devices, device.DeviceIDs)
		for _, id := range device.DeviceIDs {
			must.False(t, given[id], must.Sprintf("%s is given twice", id))
			given[id] = true
		}
		claims, err := n.Claims(deadline(t), alloc.ID, "probe")
		must.NoError(t, err)
		must.Len(t, 1, claims)
		must.Eq(t, mixedGPUs[e.gpu], claims[0].PhysicalGPU())
		must.SliceContainsAll(t, claims[0].Slices, device.DeviceIDs)

		must.Eq(t, 1, said["look"].GPUs)
		must.Eq(t, e.seesName, said["gpu"].Name)
		must.Eq(t, e.sees, said["gpu"].CUDeviceTotalMem)
		must.Eq(t, e.sees+e.reserved, said["gpu"].NVML.Total)
		must.Eq(t, "void", containerEnv(t, claims[0].Container.InitPID, "NVIDIA_VISIBLE_DEVICES"))
		e.checkRecord(t, n, alloc.ID, e.on(device.DeviceIDs[0]))
	}
}

// checkRecord compares what the program should hold with the simulator's record.
func (e *modeExample) checkRecord(t *testing.T, n *node.Node, allocID, gpu string) {
	t.Helper()
	group, err := n.Group(deadline(t), allocID, "probe")
	must.NoError(t, err)
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	groups := record.Group(group)
	must.MapLen(t, 1, groups)
	must.MapContainsKey(t, groups, gpu)
	must.LessEq(t, e.takes, groups[gpu].PeakBytes)
	must.Greater(t, e.takes-e.slack, groups[gpu].Bytes)
}

// containerEnv is a variable in the environment of a container's first process.
func containerEnv(t *testing.T, initPID int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", initPID))
	must.NoError(t, err)
	for pair := range strings.SplitSeq(string(text), "\x00") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// endsClean stops jobs, after which nothing of theirs is left: no container has a claim, no process has memory.
func endsClean(t *testing.T, n *node.Node, jobs ...string) {
	t.Helper()
	for _, job := range jobs {
		must.NoError(t, n.StopJob(deadline(t), job))
	}
	must.NoError(t, until(deadline(t), func() (bool, error) {
		living, err := livingClaims(deadline(t), n)
		return len(living) == 0, err
	}))
	mustBeFree(t, n)
}

// livingClaims maps the IDs of claims that a container has to their slices.
func livingClaims(ctx context.Context, n *node.Node) (map[string][]string, error) {
	all, err := n.AllClaims(ctx)
	living := map[string][]string{}
	for _, c := range all {
		if c.Container != nil && c.Released.IsZero() {
			living[c.ID] = c.Slices
		}
	}
	return living, err
}

// testExclusive asks twice for the one GPU that there is whole.
func testExclusive(t *testing.T, n *node.Node) {
	first := runExample(t, n, "exclusive", 1)[0]
	job, err := n.Job(filepath.Join(build, "../examples/exclusive.nomad.hcl"))
	must.NoError(t, err)
	second := "exclusive-too"
	job.ID, job.Name = &second, &second
	eval, err := n.Run(deadline(t), job)
	must.NoError(t, err)
	must.NotEq(t, "", eval.BlockedEval)
	claims, err := n.AllClaims(deadline(t))
	must.NoError(t, err)
	holders := 0
	for _, c := range claims {
		if c.PhysicalGPU() == mixedGPUs[3] && c.Container != nil && c.Released.IsZero() {
			holders++
		}
	}
	must.One(t, holders)
	device := assigned(t, n, first.ID)
	must.NoError(t, n.StopJob(deadline(t), "exclusive"))
	later := allRunning(t, n, second, 1)[0]
	must.Eq(t, device.DeviceIDs, assigned(t, n, later.ID).DeviceIDs)
	modeExamples[0].check(t, n, []*api.AllocationListStub{later})
	endsClean(t, n, second)
}

// testMaxSlices asks for more slices than one task may have: the task's events say so, and what to do.
func testMaxSlices(t *testing.T, n *node.Node) {
	start(t, n, task{job: "too-many", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(129, 4)}})
	failsWith(t, n, "too-many", "129 slices are more than one task may have on this node, which is 128 (max_slices", "ask for fewer")
	living, err := livingClaims(deadline(t), n)
	must.NoError(t, err)
	must.MapEmpty(t, living)
}
