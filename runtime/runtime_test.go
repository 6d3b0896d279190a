package runtime

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// nodeConfig is the configuration of a node in a temporary directory.
func nodeConfig(t *testing.T) Config {
	t.Helper()
	l := runtimetest.NewLayout(t)
	return Config{Node: edit.Node{
		DriverRoot: l.DriverRoot, ShadowDir: l.ShadowDir, HookPath: l.HookPath, StateDir: l.StateDir, RunDir: l.RunDir,
	}}.WithDefaults()
}

func TestEdits_NoClaims(t *testing.T) {
	edits, err := Edits(t.Context(), Config{Node: edit.Node{DriverRoot: "/nonexistent"}}, nil)
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, runtimetest.ContainerSpec(), spec)
}

func TestEdits_RelativePath(t *testing.T) {
	cfg := nodeConfig(t)
	cfg.ShadowDir = "build/lib"
	_, err := Edits(t.Context(), cfg, []edit.Claim{{Claim: &claim.Claim{ID: "aaaaaaaa"}}})
	must.ErrorContains(t, err, "shadow_dir")
	must.ErrorContains(t, err, "build/lib")
}

func TestPrepare(t *testing.T) {
	cfg := nodeConfig(t)
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir})
	must.NoError(t, err)
	reserved, token, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: runtimetest.GPU0}, Slices: []string{runtimetest.GPU0 + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	lookUp := func() []*claim.Claim {
		found, err := ledger.Lookup(t.Context(), token)
		must.NoError(t, err)
		return []*claim.Claim{found}
	}

	edits, err := Prepare(t.Context(), ledger, cfg, "first", lookUp(), 0)
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	must.NoError(t, edits.Modify(spec))
	region := runtimetest.MountAt(t, spec, "/.tranche/claims/"+reserved.ID)
	for _, file := range []string{"limit", "usage"} {
		_, err := os.Stat(region.Source + "/" + file)
		must.NoError(t, err)
	}
	must.Eq(t, region.Source+"/usage", runtimetest.MountAt(t, spec, region.Destination+"/usage").Source)

	process := exec.Command("sleep", "1000")
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill() })
	first := claim.Container{Runtime: "runc", ID: "first", InitPID: process.Process.Pid}
	must.NoError(t, ledger.Bind(t.Context(), reserved.ID, first))
	_, err = Prepare(t.Context(), ledger, cfg, "second", lookUp(), 0)
	var bound *claim.BoundError
	must.True(t, errors.As(err, &bound), must.Sprintf("%v", err))
	must.StrContains(t, err.Error(), "first")
	must.StrContains(t, err.Error(), "second")
	must.False(t, strings.Contains(err.Error(), token.Reveal()))

	must.NoError(t, process.Process.Kill())
	_ = process.Wait()
	_, err = Prepare(t.Context(), ledger, cfg, "second", lookUp(), 0)
	must.NoError(t, err)
}

// holdings is a node with a ledger.
type holdings struct {
	t      *testing.T
	cfg    Config
	ledger *claim.Ledger
}

func newHoldings(t *testing.T) *holdings {
	t.Helper()
	cfg := nodeConfig(t)
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir})
	must.NoError(t, err)
	return &holdings{t, cfg, ledger}
}

func (h *holdings) reserve(uuid string, mode claim.Mode) *claim.Claim {
	h.t.Helper()
	req := claim.Request{GPU: claim.GPU{UUID: uuid}, Slices: []string{uuid}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad, Mode: mode}
	if mode == claim.ModeMPS {
		req.MPS = &claim.MPS{Percentage: 30}
	}
	made, _, err := h.ledger.Reserve(h.t.Context(), req)
	must.NoError(h.t, err)
	return made
}

func (h *holdings) prepare(hostMemoryBytes uint64, claims ...*claim.Claim) (*specs.Spec, error) {
	h.t.Helper()
	edits, err := Prepare(h.t.Context(), h.ledger, h.cfg, "c1", claims, hostMemoryBytes)
	if err != nil {
		return nil, err
	}
	spec := runtimetest.ContainerSpec()
	return spec, edits.Modify(spec)
}

func (h *holdings) regions() []string {
	entries, _ := os.ReadDir(filepath.Join(h.cfg.RunDir, "claims"))
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestPrepare_UnlimitedHasNoRegion(t *testing.T) {
	h := newHoldings(t)
	whole := h.reserve(runtimetest.GPU0, claim.ModeExclusive)
	_, err := h.prepare(0, whole)
	must.NoError(t, err)
	must.SliceEmpty(t, h.regions())
	_, err = h.prepare(1<<20, whole)
	must.ErrorContains(t, err, "have no limit")

	// With one that has a limit, both have; memory on the host is of the one with the limit.
	limited := h.reserve(runtimetest.GPU1, claim.ModeSlice)
	_, err = h.prepare(1<<20, whole, limited)
	must.NoError(t, err)
	must.SliceContainsAll(t, h.regions(), []string{whole.ID, limited.ID})
	for id, want := range map[string]uint64{whole.ID: 0, limited.ID: 1 << 20} {
		u, err := h.ledger.Usage(t.Context(), id)
		must.NoError(t, err)
		must.Eq(t, want > 0, u.Spill != nil)
	}
}

func TestPrepare_UnlimitedIsForOneContainer(t *testing.T) {
	h := newHoldings(t)
	whole := h.reserve(runtimetest.GPU0, claim.ModeExclusive)
	process := exec.Command("sleep", "1000")
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	must.NoError(t, h.ledger.Bind(t.Context(), whole.ID, claim.Container{ID: "first", InitPID: process.Process.Pid}))
	claims, _, err := h.ledger.List(t.Context())
	must.NoError(t, err)
	_, err = h.prepare(0, claims...)
	var bound *claim.BoundError
	must.True(t, errors.As(err, &bound), must.Sprintf("%v", err))
}

func TestPrepare_InstanceThatIsNotMade(t *testing.T) {
	h := newHoldings(t)
	made, _, err := h.ledger.Reserve(t.Context(), claim.Request{
		Slices: []string{"s"}, LimitBytes: 1 << 30, Mode: claim.ModeMIG, Unlimited: true, Owner: claim.OwnerNomad,
		MIG: &claim.MIG{GPUUUID: runtimetest.GPU0, Profile: "1g.18gb", Size: 1},
	})
	must.NoError(t, err)
	_, err = h.prepare(0, made)
	must.ErrorContains(t, err, "is not created yet")
}
