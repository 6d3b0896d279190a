package wrapper_test

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// A task of Nomad's docker driver that is restarted in place: its environment has the claim token.
func TestMain_RestartInPlace(t *testing.T) {
	next, _ := recorder(t)
	n := newAskingNode(t, next)
	c, token := n.reserve(runtimetest.GPU0, "slice-000")
	task := []string{token, "NOMAD_JOB_ID=web", "NOMAD_TASK_NAME=train"}
	_ = n.runtime("create", "--bundle", n.bundle("b", "true", task...), "c1").Run()
	noted, known := n.ledger.Workload(c.ID)
	must.True(t, known)
	must.Eq(t, claim.Workload{Job: "web", Task: "train"}, noted)

	// The task ends, and a container outside Nomad needs all of its GPU.
	name, secret, _ := strings.Cut(token, "=")
	must.NoError(t, n.ledger.GiveUp(t.Context(), map[string]string{name: secret}))
	external, err := n.ledger.ReserveFit(t.Context(), claim.FitRequest{
		Candidates: []claim.Candidate{{GPU: claim.GPU{UUID: runtimetest.GPU0}, Slices: 140}}, SliceBytes: 1 << 30, LimitBytes: 140 << 30,
		Owner: claim.OwnerExternal,
	})
	must.NoError(t, err)
	message := n.fails(n.runtime("create", "--bundle", n.bundle("b3", "true", task...), "c3"))
	must.StrContains(t, message, "of claim "+c.ID+" were given to claim "+external.ID)
	must.StrContains(t, message, "stop the job and run it again")
	must.StrNotContains(t, message, secret)

	must.NoError(t, n.ledger.Cancel(t.Context(), external.ID))
	_ = n.runtime("create", "--bundle", n.bundle("b4", "true", task...), "c4").Run()
	made := n.claims()
	must.Len(t, 1, made)
	must.Eq(t, c.ID, made[0].ID)
}

// A start that tranche-runtime refuses leaves no claim reserved.
func TestMain_FailedStartOfATask(t *testing.T) {
	next, _ := recorder(t)
	n := newAskingNode(t, next)
	c, token := n.reserve(runtimetest.GPU0, "slice-000")
	n.cfg.DriverRoot = n.path("no-driver")
	n.configure(next)
	n.fails(n.runtime("create", "--bundle", n.bundle("b", "true", token), "c1"))
	made := n.claims()
	must.Len(t, 1, made)
	must.Eq(t, c.ID, made[0].ID)
	must.False(t, made[0].Released.IsZero())
}
