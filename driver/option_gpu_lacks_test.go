package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime"
)

// What the hook has found the image to lack becomes an event of the task that holds the claim, and of no other.
func TestGrants_Lacking(t *testing.T) {
	dir := t.TempDir()
	config := runtime.Config{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	reserve := func(slice, lacks string) *claim.Claim {
		made, _, err := ledger.Reserve(t.Context(), claim.Request{
			GPU: claim.GPU{UUID: testGPU}, Slices: []string{testGPU + "/" + slice}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		})
		must.NoError(t, err)
		must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{
			Runtime: "runc", ID: slice, InitPID: os.Getpid(), Lacks: lacks,
		}))
		return made
	}
	musl, other, well := reserve("slice-000", "the image has musl"), reserve("slice-001", "another's"), reserve("slice-002", "")
	g := &grants{config: config, logger: hclog.NewNullLogger()}
	must.Eq(t, []string{"GPU: the image has musl"}, g.lacking(t.Context(), &grant{claims: []*claim.Claim{musl, well}}))
	must.Eq(t, []string{"GPU: another's"}, g.lacking(t.Context(), &grant{claims: []*claim.Claim{other}}))
	must.Eq(t, nil, g.lacking(t.Context(), &grant{claims: []*claim.Claim{well}}))
	must.Eq(t, nil, (&grants{}).lacking(t.Context(), &grant{}))
}
