//go:build e2e

package e2e

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// trouble is what happens to the GPU 1 of a node that has two, and what ends it.
type trouble struct {
	name         string
	begins, ends [][]string
	// both is whether the other GPU has it as well; reason is what Nomad says.
	both   bool
	reason string
}

var troubles = []trouble{
	{
		name: "off the bus", begins: [][]string{{"lost", "1", "on"}}, ends: [][]string{{"lost", "1", "off"}},
		reason: "the GPU does not answer",
	},
	{
		name: "driver reload", begins: [][]string{{"driver", "unload"}}, ends: [][]string{{"driver", "load"}}, both: true,
		reason: "the GPU driver does not answer",
	},
	{
		name: "recovery", begins: [][]string{{"recovery", "1", "1"}}, ends: [][]string{{"recovery", "1", "0"}},
		reason: "the driver asks for a reset of the GPU",
	},
}

// TestGPUTrouble has things happen to a GPU of a node that works. Nomad shows its slices as unhealthy, and as healthy again
// afterwards; a task that runs there keeps its claim, and one that waits for a healthy slice starts by itself.
func TestGPUTrouble(t *testing.T) {
	n := startNode(t)
	start(t, n, task{job: "stays", command: "sh", args: []string{"-c", "echo up; exec sleep 100000"}, devices: []string{onGPU(4, 1)}})
	stays := running(t, n, "stays")
	saysLine(t, n, stays.ID, "up")
	before, err := n.Claims(deadline(t), stays.ID, "t")
	must.NoError(t, err)
	for _, c := range troubles {
		t.Run(c.name, func(t *testing.T) {
			order(t, n, c.begins)
			waitUnhealthy(t, n, c)

			waits := "waits-" + strings.ReplaceAll(c.name, " ", "-")
			eval := start(t, n, task{job: waits, command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(2, 1)}})
			must.NotEq(t, "", eval.BlockedEval, must.Sprint("a slice of a GPU in trouble was given out"))

			order(t, n, c.ends)
			alloc := running(t, n, waits)
			saysLine(t, n, alloc.ID, `"computing"`)
			mustHoldExactly(t, n, alloc.ID, 2*gib)
			must.NoError(t, n.StopJob(deadline(t), waits))

			after, err := n.Claims(deadline(t), stays.ID, "t")
			must.NoError(t, err)
			must.Eq(t, before, after)
			must.StrContains(t, executed(t, n, stays.ID, "gpu-probe", "look"), `"cuInit":0,"gpus":1`)
		})
	}
	newest, err := n.WaitStatus(deadline(t), "stays", "running")
	must.NoError(t, err)
	must.Eq(t, stays.ID, newest.ID)
	must.Zero(t, newest.TaskStates["t"].Restarts)
}

// order has the simulator do what faults say.
func order(t *testing.T, n *node.Node, faults [][]string) {
	t.Helper()
	for _, fault := range faults {
		_, err := n.Sim.Run(deadline(t), append([]string{"fault"}, fault...)...)
		must.NoError(t, err)
	}
}

// waitUnhealthy waits until Nomad shows the slices of the GPU in trouble as unhealthy with the reason, and those of the other
// one as that one is.
func waitUnhealthy(t *testing.T, n *node.Node, c trouble) {
	t.Helper()
	_, err := n.WaitNode(deadline(t), func(info *api.Node) bool {
		for _, group := range info.NodeResources.Devices {
			trouble := c.both || strings.HasSuffix(group.Name, "#1")
			for _, slice := range group.Instances {
				if slice.Healthy == trouble || trouble && !strings.Contains(slice.HealthDescription, c.reason) {
					return false
				}
			}
		}
		return len(info.NodeResources.Devices) == 2
	})
	must.NoError(t, err)
}

// executed runs a command in the container of the task t and returns what it says.
func executed(t *testing.T, n *node.Node, allocID string, command ...string) string {
	t.Helper()
	return executedIn(t, n, allocID, "t", command...)
}

func executedIn(t *testing.T, n *node.Node, allocID, task string, command ...string) string {
	t.Helper()
	info, _, err := n.Agent.API.Allocations().Info(allocID, nil)
	must.NoError(t, err)
	var stdout, stderr bytes.Buffer
	_, err = n.Agent.API.Allocations().Exec(deadline(t), info, task, false, command, strings.NewReader(""), &stdout, &stderr,
		make(chan api.TerminalSize), nil)
	must.NoError(t, err, must.Sprint(stderr.String()))
	return stdout.String()
}
