//go:build e2e

package e2e

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// TestFiveHundredProcesses lets five hundred processes in eight containers allocate and free at random while some of them
// are killed. The simulator notes the most that each container ever held, at every change and not at samples.
func TestFiveHundredProcesses(t *testing.T) {
	const (
		containers = 8
		limit      = 32 * gib
	)
	n := startNode(t)
	importProgram(t, n, churnImage, "churn")
	start(t, n, task{
		job: "churn", image: churnImage, command: "churn", count: containers, memoryMiB: 1024,
		args:    []string{"63", "20", "100", "20261121"},
		devices: []string{anyGPU(32)},
	})
	running(t, n, "churn")
	allocs, _, err := n.Agent.API.Jobs().Allocations("churn", false, nil)
	must.NoError(t, err)
	must.Len(t, containers, allocs)
	for _, alloc := range allocs {
		checkChurn(t, saysLine(t, n, alloc.ID, `"done"`), limit)
		groups := held(t, n, alloc.ID)
		must.MapLen(t, 1, groups)
		for _, g := range groups {
			must.LessEq(t, limit, g.PeakBytes)
			must.Greater(t, limit/2, g.PeakBytes, must.Sprint("the processes hardly allocated"))
			must.Zero(t, g.Bytes, must.Sprint("memory is held although all workers have ended"))
		}
	}
	checkUsageIsZero(t, n, allocs)
	mustBeFree(t, n)
	must.NoError(t, n.StopJob(deadline(t), "churn"))
}

// checkChurn reads what the parent of a container's workers said at the end.
func checkChurn(t *testing.T, line string, limit uint64) {
	t.Helper()
	var done struct {
		Killed       int    `json:"killed"`
		Heard        int    `json:"heard"`
		Calls        uint64 `json:"calls"`
		Refused      uint64 `json:"refused"`
		Failed       uint64 `json:"failed"`
		FirstFailure int    `json:"first_failure"`
		LongestMs    uint64 `json:"longest_ms"`
		Whole        uint64 `json:"whole"`
	}
	must.NoError(t, json.Unmarshal([]byte(line), &done))
	t.Logf("%s", line)
	must.Eq(t, 100, done.Killed)
	must.Eq(t, 63, done.Heard)
	must.Zero(t, done.Failed, must.Sprintf("a call failed with CUDA error %d", done.FirstFailure))
	must.Positive(t, done.Refused, must.Sprint("the limit was never reached, so nothing was tested"))
	const context = 300 * mib
	must.Eq(t, limit-context, done.Whole, must.Sprint("what the dead held did not come back"))
	// A wait for a dead process has no end. Others wait for processes that live and have no processor: there are 504 of them, and
	// other tests run beside this one.
	must.Less(t, 60_000, done.LongestMs, must.Sprint("a survivor waited for a dead process"))
}

// checkUsageIsZero checks that Tranche's own accounting has forgotten the dead as well.
func checkUsageIsZero(t *testing.T, n nodeUnderTest, allocs []*api.AllocationListStub) {
	t.Helper()
	ledger := openLedger(t, n)
	for _, alloc := range allocs {
		claims, err := n.Claims(deadline(t), alloc.ID, "t")
		must.NoError(t, err)
		for _, c := range claims {
			usage, err := ledger.Usage(deadline(t), c.ID)
			must.NoError(t, err)
			must.Zero(t, usage.UsedBytes)
		}
	}
}
