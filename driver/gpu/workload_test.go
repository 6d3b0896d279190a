package gpu

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

func TestBegin_AndGiveUp(t *testing.T) {
	dir := t.TempDir()
	c := New(runtime.Config{Node: edit.Node{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}}, hclog.NewNullLogger())
	ledger, err := c.open()
	must.NoError(t, err)
	claimtest.RemoveRegions(t, c.config.RunDir)
	made, token, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: testGPU}, Slices: []string{claim.SliceName(testGPU, 0)}, SliceBytes: 1 << 30, LimitBytes: 1 << 30,
		Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	cfg := &drivers.TaskConfig{
		ID: "task", Namespace: "ml", JobID: "web/periodic-1", ParentJobID: "web", JobName: "the web", TaskGroupName: "gpu", Name: "train",
		AllocID: "3f2a91b0", DeviceEnv: map[string]string{token.EnvName(): token.Reveal()},
	}
	must.NoError(t, c.Begin(t.Context(), cfg))
	noted, _ := ledger.Workload(made.ID)
	must.Eq(t, claim.Workload{
		Namespace: "ml", Job: "web/periodic-1", ParentJob: "web", Group: "gpu", Task: "train", Allocation: "3f2a91b0", Verified: true,
	}, noted)

	// The start's own context may be what ended it.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.GiveUp(ended, cfg)
	left, _, err := ledger.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, claim.StateDormant, ledger.State(left[0], time.Now()))

	external, err := ledger.ReserveFit(t.Context(), claim.FitRequest{
		Candidates: []claim.Candidate{{GPU: claim.GPU{UUID: testGPU}, Slices: 1}}, SliceBytes: 1 << 30, LimitBytes: 1 << 30,
		Owner: claim.OwnerExternal,
	})
	must.NoError(t, err)
	err = c.Begin(t.Context(), cfg)
	must.ErrorContains(t, err, "were given to claim "+external.ID)
	must.False(t, recoverable.Is(err), must.Sprint("so that Nomad places the task anew, with other slices"))
	c.GiveUp(t.Context(), cfg)
	must.NoError(t, ledger.Cancel(t.Context(), external.ID))
	must.NoError(t, c.Begin(t.Context(), cfg))

	must.NoError(t, c.Begin(t.Context(), &drivers.TaskConfig{}))
	c.GiveUp(t.Context(), &drivers.TaskConfig{})
}
