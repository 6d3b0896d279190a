//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestKilledComponents kills each part of the node with SIGKILL under running tasks: the tasks go on, their limits hold, and
// jobs start afterwards.
func TestKilledComponents(t *testing.T) {
	n := startNode(t)
	start(t, n, task{job: "steady", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(8, 0)}})
	start(t, n, task{job: "greedy", command: "gpu-probe", args: []string{"greedy"}, devices: []string{onGPU(4, 0)}})
	steady, greedy := running(t, n, "steady"), running(t, n, "greedy")
	saysLine(t, n, steady.ID, `"computing"`)
	saysLine(t, n, greedy.ID, `"refusals":`)
	pids := initPIDs(t, n, steady, greedy)

	components := []struct {
		name string
		kill func(t *testing.T)
	}{
		{"agent", func(t *testing.T) {
			n.Agent.Kill()
			must.NoError(t, n.Agent.Start(deadline(t)))
		}},
		{"nomad-device-tranche", func(t *testing.T) { killPlugin(t, n, "nomad-device-tranche") }},
		{"nomad-driver-tranche", func(t *testing.T) { killPlugin(t, n, "nomad-driver-tranche") }},
		{"containerd", func(t *testing.T) {
			must.NoError(t, n.Containerd.Kill())
			must.NoError(t, n.Containerd.Restart(deadline(t)))
		}},
	}
	for _, c := range components {
		t.Run(c.name, func(t *testing.T) {
			before := launches(t, n, steady)
			driverPlugin := pluginPIDs(t, n, "nomad-driver-tranche")
			c.kill(t)
			must.NoError(t, n.WaitReady(deadline(t)))

			job := "after-" + c.name
			start(t, n, task{job: job, command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(2, 0)}})
			after := running(t, n, job)
			saysLine(t, n, after.ID, `"computing"`)
			mustHoldExactly(t, n, after.ID, 2*gib)
			must.NoError(t, n.StopJob(deadline(t), job))

			if c.name != "nomad-driver-tranche" {
				must.Eq(t, driverPlugin, pluginPIDs(t, n, "nomad-driver-tranche"), must.Sprint("the driver plugin died of it"))
			}
			must.Eq(t, pids, initPIDs(t, n, steady, greedy), must.Sprint("a task was restarted"))
			must.Greater(t, before, launches(t, n, steady), must.Sprint("a task stood still"))
			mustHoldExactly(t, n, steady.ID, 8*gib)
			mustHoldExactly(t, n, greedy.ID, 4*gib)
			for _, job := range []string{"steady", "greedy"} {
				must.Eq(t, "running", running(t, n, job).ClientStatus)
			}
		})
	}
	must.NoError(t, n.StopJob(deadline(t), "steady"))
	must.NoError(t, n.StopJob(deadline(t), "greedy"))
	mustBeFree(t, n)
}

// killPlugin kills a plugin and waits until Nomad has started it again. What is placed before Nomad has noticed fails
// ("plugin is shut down"), and that is Nomad's own matter.
func killPlugin(t *testing.T, n *node.Node, name string) {
	t.Helper()
	before := pluginPIDs(t, n, name)
	must.NoError(t, n.KillPlugin(name))
	must.NoError(t, until(deadline(t), func() (bool, error) {
		after, err := n.PluginPIDs(name)
		// A child that has yet to become another program counts as a plugin, too, and the agent takes a moment to notice.
		return len(after) > 0 && !slices.ContainsFunc(after, func(pid int) bool { return slices.Contains(before, pid) }), err
	}))
}

// pluginPIDs are the processes that run a plugin.
func pluginPIDs(t *testing.T, n *node.Node, name string) []int {
	t.Helper()
	pids, err := n.PluginPIDs(name)
	must.NoError(t, err)
	return pids
}

// initPIDs are the first processes of the allocations' containers.
func initPIDs(t *testing.T, n *node.Node, allocs ...*api.AllocationListStub) []int {
	t.Helper()
	var pids []int
	for _, a := range allocs {
		claims, err := n.Claims(deadline(t), a.ID, "t")
		must.NoError(t, err)
		must.Len(t, 1, claims)
		must.NotNil(t, claims[0].Container)
		pids = append(pids, claims[0].Container.InitPID)
	}
	return pids
}

// launches is how many kernels the container of an allocation has launched by the simulator's record.
func launches(t *testing.T, n *node.Node, alloc *api.AllocationListStub) uint64 {
	t.Helper()
	var sum uint64
	for _, g := range held(t, n, alloc.ID) {
		sum += g.Launches
	}
	return sum
}

// TestRestartInPlace restarts a task in place after the agent has restarted: Nomad does not reserve again and has kept
// nothing but the environment, and yet the new container is held to the same limit.
func TestRestartInPlace(t *testing.T) {
	n := startNode(t)
	start(t, n, task{job: "again", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(6, 1)}})
	alloc := running(t, n, "again")
	saysLine(t, n, alloc.ID, `"computing"`)
	before := initPIDs(t, n, alloc)[0]

	n.Agent.Kill()
	must.NoError(t, n.Agent.Start(deadline(t)))
	must.NoError(t, n.WaitReady(deadline(t)))
	restart(t, n, alloc, before)

	mustHoldExactly(t, n, alloc.ID, 6*gib)
	must.Eq(t, alloc.ID, running(t, n, "again").ID)
}

// restart restarts an allocation's task in place and waits until its new container computes.
func restart(t *testing.T, n *node.Node, alloc *api.AllocationListStub, oldPID int) {
	t.Helper()
	info, _, err := n.Agent.API.Allocations().Info(alloc.ID, nil)
	must.NoError(t, err)
	must.NoError(t, n.Agent.API.Allocations().Restart(info, "t", nil))
	waitRestarted(t, n, alloc, oldPID)
}

// waitRestarted waits until an allocation's task runs in a new container that has filled its GPU.
func waitRestarted(t *testing.T, n *node.Node, alloc *api.AllocationListStub, oldPID int) {
	t.Helper()
	_, err := n.WaitAlloc(deadline(t), alloc.JobID, func(a *api.AllocationListStub) bool {
		state := a.TaskStates["t"]
		if a.ID != alloc.ID || state == nil || state.State != "running" {
			return false
		}
		claims, err := n.Claims(deadline(t), a.ID, "t")
		return err == nil && len(claims) == 1 && claims[0].Container != nil && claims[0].Container.InitPID != oldPID
	})
	must.NoError(t, err)
	full := 0
	must.NoError(t, n.Lines(deadline(t), alloc.ID, "t", func(line string) bool {
		if strings.Contains(line, `"full"`) {
			full++
		}
		return full == 2 && strings.Contains(line, `"computing"`)
	}))
}

// TestReboot takes the power from the node: processes, mounts and /run are gone, the state on disk is kept.
func TestReboot(t *testing.T) {
	n := startNode(t)
	start(t, n, task{job: "survivor", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(7, 0)}})
	alloc := running(t, n, "survivor")
	saysLine(t, n, alloc.ID, `"computing"`)
	before := initPIDs(t, n, alloc)[0]

	must.NoError(t, n.Reboot(deadline(t)))
	waitRestarted(t, n, alloc, before)
	mustHoldExactly(t, n, alloc.ID, 7*gib)

	start(t, n, task{job: "new", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(3, 0)}})
	fresh := running(t, n, "new")
	saysLine(t, n, fresh.ID, `"computing"`)
	mustHoldExactly(t, n, fresh.ID, 3*gib)
}

// TestExitWhileTheAgentIsDown ends a task while neither the agent nor the driver is there to see it: its exit code is not lost.
func TestExitWhileTheAgentIsDown(t *testing.T) {
	n := startNode(t)
	start(t, n, task{
		job: "away", jobType: "batch", command: "sh",
		args:    []string{"-c", "echo ready; mkfifo /alloc/data/go; read x < /alloc/data/go; exit 7"},
		devices: []string{anyGPU(1)},
	})
	alloc := running(t, n, "away")
	saysLine(t, n, alloc.ID, "ready")
	pid := initPIDs(t, n, alloc)[0]
	n.Agent.Kill()
	must.NoError(t, n.KillPlugin("nomad-driver-tranche"))

	fifo := filepath.Join(n.Dir, "nomad/alloc", alloc.ID, "alloc/data/go")
	gone := make(chan error, 1)
	go func() { gone <- node.WaitGone(pid) }()
	must.NoError(t, os.WriteFile(fifo, []byte("now\n"), 0o600))
	must.NoError(t, <-gone)

	must.NoError(t, n.Agent.Start(deadline(t)))
	ended, err := n.WaitStatus(deadline(t), "away", "failed")
	must.NoError(t, err)
	must.StrContains(t, node.Story(ended), "Exit Code: 7")
}
