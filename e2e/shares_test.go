//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

const loadImage = "tranche.local/load:test"

// sharesTolerance is in points: other tests run on the same two processors. `make bench` measures how exact shares are.
const sharesTolerance = 12

// startShares starts a node with the configuration of examples/shares-agent.hcl, and these options of the device plugin.
func startShares(t *testing.T, device ...string) *node.Node {
	t.Helper()
	return startSharesOn(t, func(*node.Config) {}, device...)
}

// startSharesOn is startShares on a node that is changed.
func startSharesOn(t *testing.T, change func(*node.Config), device ...string) *node.Node {
	t.Helper()
	text := readFile(t, filepath.Join(build, "../examples/shares-agent.hcl"))
	blocks := regexp.MustCompile(`(?s)plugin "nomad-(?:device|driver)-tranche" \{\n  config \{\n(.*?)\n  \}\n\}`).FindAllStringSubmatch(text, -1)
	must.SliceLen(t, 2, blocks)
	n := startNode(t, change, func(c *node.Config) {
		c.DeviceConfig, c.DriverConfig = blocks[0][1]+"\n"+strings.Join(device, "\n"), blocks[1][1]+"\n"
	})
	importProgram(t, n, loadImage, "load")
	return n
}

// load starts a job that always wants the first GPU, and returns the name of its container in the record.
func load(t *testing.T, n *node.Node, job string, slices int, config string) string {
	t.Helper()
	return started(t, n, task{
		job: job, image: loadImage, command: "load", args: []string{"--kernel", "1000", "--ready"},
		devices: []string{onGPU(slices, 0)}, configExtra: config,
	})
}

// started starts a job that says when it is ready, and returns the name of its container in the record.
func started(t *testing.T, n *node.Node, job task) string {
	t.Helper()
	start(t, n, job)
	alloc := running(t, n, job.job)
	saysLine(t, n, alloc.ID, "ready")
	group, err := n.Group(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	return group
}

// busy is the GPU time that each container has had.
func busy(t *testing.T, n *node.Node) map[string]uint64 {
	t.Helper()
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	all := map[string]uint64{}
	for _, g := range record.Groups {
		all[g.Group] += g.BusyNS
	}
	return all
}

// partOf is a container's part, in percent, of what two of them have of the GPU's time from now on; NaN if the GPU stands still
// most of the time.
func partOf(t *testing.T, n *node.Node, one, other string) float64 {
	t.Helper()
	const window = 4 * time.Second
	before := busy(t, n)
	time.Sleep(window) // what happens in this time is what is judged
	after := busy(t, n)
	mine, its := after[one]-before[one], after[other]-before[other]
	if mine+its < uint64(window/5) {
		return math.NaN()
	}
	return 100 * float64(mine) / float64(mine+its)
}

// comesTo waits until a container's part has been within the tolerance of what is expected: joining takes a moment.
func comesTo(t *testing.T, n *node.Node, want float64, one, other string) {
	t.Helper()
	ctx := deadline(t)
	for {
		part := partOf(t, n, one, other)
		t.Logf("%.1f%%, expected %.0f%%", part, want)
		if math.Abs(part-want) <= sharesTolerance {
			return
		}
		must.NoError(t, ctx.Err(), must.Sprintf("the part is %.1f%%, not %.0f%%", part, want))
	}
}

// TestShares has real Nomad run jobs that compute in turns. The simulator's record judges.
func TestShares(t *testing.T) {
	n := startShares(t)
	small, large := load(t, n, "small", 42, ""), load(t, n, "large", 98, "")
	comesTo(t, n, 30, small, large)

	first := n.GovernorPID()
	must.Positive(t, first)
	must.NoError(t, unix.Kill(first, unix.SIGKILL))
	must.NoError(t, until(deadline(t), func() (bool, error) {
		pid := n.GovernorPID()
		return pid != 0 && pid != first, nil
	}))
	comesTo(t, n, 30, small, large)
	for _, job := range []string{"small", "large"} {
		must.NoError(t, n.StopJob(deadline(t), job))
	}

	// What tasks state counts, not their slices; the story says what they have.
	small, large = exampleGroup(t, n, "shares", "small"), exampleGroup(t, n, "shares", "large")
	comesTo(t, n, 30, small, large)
	claims, err := n.AllClaims(deadline(t))
	must.NoError(t, err)
	for _, c := range claims {
		if c.Governed() && c.Released.IsZero() && c.Compute.Share == 300 {
			_, err := openLedger(t, n).ChangeCompute(deadline(t), c.ID, func(had claim.Compute) (claim.Compute, error) {
				had.Share = 700
				return had, nil
			})
			must.NoError(t, err)
		}
	}
	comesTo(t, n, 50, small, large)
}

// TestShares_Paused has a container with a small share paused and resumed, as `docker pause` does it, while its kernels run. The
// other has its share.
func TestShares_Paused(t *testing.T) {
	n := startShares(t)
	paused := started(t, n, task{
		job: "paused", image: loadImage, command: "load", args: []string{"--kernel", "100000", "--ready"}, devices: []string{onGPU(14, 0)},
	})
	pid, err := n.InitPID(deadline(t), running(t, n, "paused").ID, "t")
	must.NoError(t, err)
	other := load(t, n, "other", 126, "")
	comesTo(t, n, 10, paused, other)

	over, ended := make(chan struct{}), make(chan error)
	go func() { ended <- pauseAndResume(pid, over) }()
	for range 5 {
		part := partOf(t, n, paused, other)
		t.Logf("%.1f%% of what both had", part)
		must.Less(t, 10+sharesTolerance, part)
	}
	close(over)
	must.NoError(t, <-ended)
	comesTo(t, n, 10, paused, other)
}

// pauseAndResume freezes and thaws the cgroup of a process, until it is told to stop.
func pauseAndResume(pid int, over <-chan struct{}) error {
	v1, unified, err := cgroups.ParseCgroupFileUnified(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	file, states := filepath.Join("/sys/fs/cgroup", unified, "cgroup.freeze"), []string{"1", "0"}
	if path, ok := v1["freezer"]; ok {
		file, states = filepath.Join("/sys/fs/cgroup/freezer", path, "freezer.state"), []string{"FROZEN", "THAWED"}
	}
	for {
		for i, lasts := range []time.Duration{250 * time.Millisecond, 30 * time.Millisecond} {
			if err := os.WriteFile(file, []byte(states[i]), 0); err != nil {
				return err
			}
			time.Sleep(lasts)
		}
		select {
		case <-over:
			return nil
		default:
		}
	}
}

// exampleGroup runs an example, if it does not run yet, and returns the name of a group's container in the record.
func exampleGroup(t *testing.T, n *node.Node, example, group string) string {
	t.Helper()
	for _, alloc := range runExample(t, n, example, 2) {
		if alloc.TaskGroup != group {
			continue
		}
		must.StrContains(t, node.Story(alloc), "GPU compute: share ")
		must.MapContainsKey(t, probed(t, n, alloc.ID), "computing")
		name, err := n.Group(deadline(t), alloc.ID, "probe")
		must.NoError(t, err)
		return name
	}
	t.Fatalf("%s has no group %s", example, group)
	return ""
}

// TestShares_Priority has a service of high priority compute beside a best-effort job, which has what is left.
func TestShares_Priority(t *testing.T) {
	n := startShares(t)
	service, batch := exampleGroup(t, n, "priority", "service"), exampleGroup(t, n, "priority", "batch")
	comesTo(t, n, 100, service, batch)
}

// TestShares_Refused starts jobs that state what the node does not allow.
func TestShares_Refused(t *testing.T) {
	n := startShares(t)
	for job, c := range map[string]struct{ config, want string }{
		"greedy":   {"gpu_compute {\n share = 90\n}", "at most 80% of GPU"},
		"nonsense": {"gpu_compute {\n share = 90\n max = 50\n}", "option gpu_compute: the share, 90%, is more than the ceiling max, 50%"},
		"urgent":   {"gpu_compute {\n priority = \"urgent\"\n}", "option gpu_compute.priority"},
	} {
		start(t, n, task{job: job, command: "gpu-probe", args: []string{"look"}, devices: []string{anyGPU(1)}, configExtra: c.config})
		failsWith(t, n, job, c.want)
	}
}

// TestShares_TwoGPUs has programs that use two GPUs each compute in turns on both, which they have at the same time. The
// programs that wait for both GPUs after each kernel have no share that is promised; what they had is logged.
func TestShares_TwoGPUs(t *testing.T) {
	n := startShares(t)
	small, large := loadTwoGPUs(t, n, "small", 42, "64"), loadTwoGPUs(t, n, "large", 98, "64")
	had := comeTo(t, n, func(had gpuTimes) bool {
		return len(had) == 2 && had.all(func(of map[string]float64) bool {
			return math.Abs(100*of[small]/(of[small]+of[large])-30) <= sharesTolerance
		})
	})
	t.Log("queues that are full: ", had)
	for _, job := range []string{"small", "large"} {
		must.NoError(t, n.StopJob(deadline(t), job))
	}

	small, large = loadTwoGPUs(t, n, "small", 42, "1"), loadTwoGPUs(t, n, "large", 98, "1")
	had = comeTo(t, n, func(had gpuTimes) bool {
		return len(had) == 2 && had.all(func(of map[string]float64) bool { return of[small] > 1 && of[large] > 1 })
	})
	t.Log("in step: ", had)
}

// loadTwoGPUs starts a job that launches each of its kernels on two GPUs, and returns the name of its container in the record.
func loadTwoGPUs(t *testing.T, n *node.Node, job string, slices int, depth string) string {
	t.Helper()
	return started(t, n, task{
		job: job, image: loadImage, command: "load", args: []string{"--gpus", "2", "--kernel", "1000", "--depth", depth, "--ready"},
		devices: []string{onGPU(slices, 0), onGPU(slices, 1)},
	})
}

// gpuTimes are parts of a window, in percent, that containers had of GPUs, by the UUID and the container.
type gpuTimes map[string]map[string]float64

func (g gpuTimes) all(so func(map[string]float64) bool) bool {
	for _, of := range g {
		if !so(of) {
			return false
		}
	}
	return true
}

// comeTo waits until what containers had of the GPUs in a window is as expected, and returns it.
func comeTo(t *testing.T, n *node.Node, expected func(gpuTimes) bool) gpuTimes {
	t.Helper()
	const window = 4 * time.Second
	ctx := deadline(t)
	for {
		before, err := n.Sim.Record(ctx)
		must.NoError(t, err)
		time.Sleep(window) // what happens in this time is what is judged
		after, err := n.Sim.Record(ctx)
		must.NoError(t, err)
		had := gpuTimes{}
		for _, g := range after.Groups {
			ns := g.BusyNS - before.Group(g.Group)[g.GPUUUID].BusyNS
			if had[g.GPUUUID] == nil {
				had[g.GPUUUID] = map[string]float64{}
			}
			had[g.GPUUUID][g.Group] = 100 * float64(ns) / float64(window)
		}
		if expected(had) {
			return had
		}
		must.NoError(t, ctx.Err(), must.Sprint(had))
	}
}

// TestShares_Bypass has a task load the driver's own library, from where the shadow library has it: an event of the task names the
// process, and so does the status. The operator wants such a task to be ended; one beside it goes on.
func TestShares_Bypass(t *testing.T) {
	n := startShares(t, `compute_bypass = "end"`)
	beside := load(t, n, "beside", 4, "")
	start(t, n, task{
		job: "bypass", image: loadImage, command: "load", devices: []string{onGPU(4, 0)},
		args: []string{"--kernel", "1000", "--ready", "--library", "/.tranche/c/0000/driver-libcuda.so"},
	})
	alloc := running(t, n, "bypass")
	saysLine(t, n, alloc.ID, "ready")
	pid, err := n.InitPID(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	group, err := n.Group(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	tells := func(what string) {
		_, err := n.WaitAlloc(deadline(t), "bypass", func(a *api.AllocationListStub) bool { return strings.Contains(node.Story(a), what) })
		must.NoError(t, err)
	}
	tells(fmt.Sprintf("GPU's time does not hold for process %d (load)", pid))
	must.StrContains(t, string(tranche(t, n, "status")), fmt.Sprintf(`processes that have not joined: "load" (%d)`, pid))
	tells(`the task was ended for that, as the device plugin's configuration says (compute_bypass = "end")`)
	_, err = n.WaitAlloc(deadline(t), "bypass", func(a *api.AllocationListStub) bool { return a.ClientStatus == api.AllocClientStatusFailed })
	must.NoError(t, err)
	before := busy(t, n)
	must.Positive(t, before[group])
	must.NoError(t, until(deadline(t), func() (bool, error) { return busy(t, n)[beside] > before[beside], nil }))
}
