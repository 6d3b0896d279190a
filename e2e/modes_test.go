//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// modeExample is an example of a way to share a GPU, and what has to come of it.
type modeExample struct {
	name string
	// count is how many allocations it has; each has devices of the group.
	count, devices int
	group          string
	// gpu is the index of the GPU that all are on.
	gpu int
	// seesName and sees are the name and the memory of the GPU in the container, and nvml is what NVML says of the GPU that it
	// is or is on, with what the driver keeps for itself. takes is how much the program holds, or less than slack short of it.
	seesName                 string
	sees, nvml, takes, slack uint64
}

// modeExamples are those of the modes on a node of examples/mixed-agent.hcl.
var modeExamples = []modeExample{
	{
		name: "exclusive", count: 1, devices: 1, group: "nvidia/gpu/NVIDIA H100 80GB HBM3", gpu: 3,
		seesName: "NVIDIA H100 80GB HBM3", sees: 81079 * mib, nvml: (81079 + 480) * mib, takes: 81079 * mib, slack: 2 * mib,
	},
	{
		name: "timeslice", count: 2, devices: 1, group: "nvidia/timeslice/Tesla T4 #7", gpu: 7,
		seesName: "Tesla T4", sees: 14927 * mib, nvml: (14927 + 433) * mib, takes: (4096 + 160) * mib, slack: 1,
	},
	{
		name: "constraints", count: 1, devices: 16, group: "nvidia/slice/NVIDIA H200 #6", gpu: 6,
		seesName: "NVIDIA H200", sees: 16 * gib, nvml: 16 * gib, takes: 16 * gib, slack: 2 * mib,
	},
	{
		name: "mig", count: 1, devices: 1, group: "nvidia/gpu/NVIDIA A100-SXM4-40GB MIG 3g.20gb", gpu: 0,
		seesName: "NVIDIA A100-SXM4-40GB MIG 3g.20gb", sees: threeG, nvml: 40960 * mib, takes: threeG, slack: 2 * mib,
	},
	onDemand,
	sideBySide,
}

// threeG is the memory of an instance 3g.20gb of an A100 with 40 GB in bytes, as the simulated driver cuts it.
const threeG = 20612382720

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
		must.Eq(t, e.nvml, said["gpu"].NVML.Total)
		must.Eq(t, "void", containerEnv(t, claims[0].Container.InitPID, "NVIDIA_VISIBLE_DEVICES"))
		e.checkRecord(t, n, alloc.ID, claims[0].GPU.UUID)
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
