//go:build e2e

package e2e

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// startAt registers a job that fills slices of the GPU 0, with a priority.
func startAt(t *testing.T, n *node.Node, name string, priority, slices int) *api.Evaluation {
	t.Helper()
	job, err := n.ParseJob(task{
		job: name, command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(slices, 0)},
		// A deployment that ends after an eviction has Nomad 1.11 forget that the job waits.
		groupExtra: "update {\n max_parallel = 0\n}",
	}.hcl())
	must.NoError(t, err)
	job.Priority = &priority
	eval, err := n.Run(deadline(t), job)
	must.NoError(t, err)
	return eval
}

// TestPreemption lets a job of high priority take the slices of one of low priority: that one's container ends first, the
// other's gets exactly its limit, and who is in nobody's way goes on. Afterwards the one that was evicted comes back.
func TestPreemption(t *testing.T) {
	n := startNode(t)
	startAt(t, n, "low", 10, 90)
	startAt(t, n, "middle", 20, 40)
	low, middle := running(t, n, "low"), running(t, n, "middle")
	saysLine(t, n, low.ID, `"computing"`)
	saysLine(t, n, middle.ID, `"computing"`)

	// Unless the cluster's operator allows it, whoever comes later waits, whatever its priority.
	eval := startAt(t, n, "patient", 90, 50)
	must.NotEq(t, "", eval.BlockedEval)
	must.NoError(t, n.StopJob(deadline(t), "patient"))
	_, _, err := n.Agent.API.Operator().SchedulerSetConfiguration(&api.SchedulerConfiguration{
		SchedulerAlgorithm: api.SchedulerAlgorithmBinpack,
		PreemptionConfig:   api.PreemptionConfig{ServiceSchedulerEnabled: true},
	}, nil)
	must.NoError(t, err)

	// Nor is anybody evicted for somebody of nearly the same priority: Nomad wants a difference of 10.
	eval = startAt(t, n, "peer", 19, 50)
	must.NotEq(t, "", eval.BlockedEval)
	must.NoError(t, n.StopJob(deadline(t), "peer"))

	eval = startAt(t, n, "high", 90, 100)
	must.Eq(t, "", eval.BlockedEval)
	high := running(t, n, "high")
	saysLine(t, n, high.ID, `"computing"`)
	mustHoldExactly(t, n, high.ID, 100*gib)
	evicted, _, err := n.Agent.API.Allocations().Info(low.ID, nil)
	must.NoError(t, err)
	must.Eq(t, api.AllocDesiredStatusEvict, evicted.DesiredStatus)
	must.Eq(t, high.ID, evicted.PreemptedByAllocation)
	must.Eq(t, api.AllocClientStatusComplete, evicted.ClientStatus)
	mustHoldExactly(t, n, middle.ID, 40*gib)
	mustBeDisjoint(t, n)

	must.NoError(t, n.StopJob(deadline(t), "high"))
	back, err := n.WaitAlloc(deadline(t), "low", func(a *api.AllocationListStub) bool { return a.ID != low.ID && a.ClientStatus == "running" })
	must.NoError(t, err)
	saysLine(t, n, back.ID, `"computing"`)
	mustHoldExactly(t, n, back.ID, 90*gib)
	mustHoldExactly(t, n, middle.ID, 40*gib)
}

// mustBeDisjoint checks that no slice is in two claims that containers have.
func mustBeDisjoint(t *testing.T, n *node.Node) {
	t.Helper()
	living, err := livingClaims(deadline(t), n)
	must.NoError(t, err)
	holder := map[string]string{}
	for id, slices := range living {
		for _, slice := range slices {
			must.MapNotContainsKey(t, holder, slice, must.Sprintf("claims %s and %s both have it", id, holder[slice]))
			holder[slice] = id
		}
	}
}
