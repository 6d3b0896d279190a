package compute

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/internal/percent"
)

const testGPU = "GPU-11111111-2222-3333-4444-555555555555"

func newLedger(t *testing.T) *claim.Ledger {
	t.Helper()
	dir := t.TempDir()
	l, err := claim.Open(claim.Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")})
	must.NoError(t, err)
	return l
}

// reserve makes a claim on a slice that is worth a fifth of the GPU; nil is a claim that is not governed.
func reserve(t *testing.T, l *claim.Ledger, slice string, c *claim.Compute) *claim.Claim {
	t.Helper()
	made, _, err := l.Reserve(t.Context(), claim.Request{
		GPU:    claim.GPU{UUID: testGPU, Name: "NVIDIA H200", ContextBytes: 300 << 20},
		Slices: []string{testGPU + "/" + slice}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad, Compute: c,
	})
	must.NoError(t, err)
	return made
}

func fifth() *claim.Compute { return &claim.Compute{Share: 200, Max: 1000, Class: claim.ClassNormal} }

func recorded(t *testing.T, l *claim.Ledger, id string) *claim.Compute {
	t.Helper()
	claims, _, err := l.List(t.Context())
	must.NoError(t, err)
	for _, c := range claims {
		if c.ID == id {
			return c.Compute
		}
	}
	t.Fatalf("no claim %s", id)
	return nil
}

func TestApply(t *testing.T) {
	for name, c := range map[string]struct {
		request Request
		bounds  Bounds
		want    claim.Compute
		err     string
	}{
		"nothing":              {want: claim.Compute{Share: 200, Max: 1000, Class: claim.ClassNormal}},
		"less than the slices": {request: Request{Share: 100}, want: claim.Compute{Share: 100, Max: 1000, Class: claim.ClassNormal}},
		"more than the slices": {request: Request{Share: 300}, err: "option x: share: this node allows claim "},
		"more, allowed": {request: Request{Share: 300, Max: 500}, bounds: Bounds{MaxShare: 300},
			want: claim.Compute{Share: 300, Max: 500, Class: claim.ClassNormal}},
		"more than allowed": {request: Request{Share: 301}, bounds: Bounds{MaxShare: 300}, err: "at most 30% of GPU 0, got 30.1%"},
		"a low ceiling":     {request: Request{Max: 150}, want: claim.Compute{Share: 150, Max: 150, Class: claim.ClassNormal}},
		"less priority":     {request: Request{Class: claim.ClassBestEffort}, want: claim.Compute{Share: 200, Max: 1000, Class: claim.ClassBestEffort}},
		"more priority":     {request: Request{Class: claim.ClassHigh}, err: "gpu_compute_high_priority"},
		"more, granted": {request: Request{Class: claim.ClassHigh}, bounds: Bounds{HighPriority: true},
			want: claim.Compute{Share: 200, Max: 1000, Class: claim.ClassHigh}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			made := reserve(t, l, "slice-000", fifth())
			err := c.request.Apply(t.Context(), l, t.TempDir(), c.bounds, "option x", []*claim.Claim{made})
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				must.Eq(t, fifth(), recorded(t, l, made.ID))
				return
			}
			must.NoError(t, err)
			must.Eq(t, &c.want, made.Compute)
			must.Eq(t, &c.want, recorded(t, l, made.ID))
		})
	}
}

func TestApply_NotGoverned(t *testing.T) {
	l := newLedger(t)
	without, with := reserve(t, l, "slice-000", nil), reserve(t, l, "slice-001", fifth())
	err := Request{Share: 100}.Apply(t.Context(), l, t.TempDir(), Bounds{}, "option x", []*claim.Claim{without})
	must.ErrorIs(t, err, claim.ErrNotGoverned)
	must.EqError(t, err, "option x: the claim is not governed: its GPU's time is shared by the driver; set compute = \"shares\" in the "+
		"device plugin's configuration, and start the job again; or remove it")
	must.ErrorIs(t, Request{Share: 100}.Apply(t.Context(), l, t.TempDir(), Bounds{}, "option x", nil), claim.ErrNotGoverned)
	must.NoError(t, Request{Share: 100}.Apply(t.Context(), l, t.TempDir(), Bounds{}, "option x", []*claim.Claim{without, with}))
	must.Nil(t, recorded(t, l, without.ID))
	must.Eq(t, 100, recorded(t, l, with.ID).Share)
}

// A restart in place keeps what the operator has changed since.
func TestApply_KeepsChangesOverARestart(t *testing.T) {
	l := newLedger(t)
	made := reserve(t, l, "slice-000", fifth())
	request := Request{Share: 150}
	must.NoError(t, request.Apply(t.Context(), l, t.TempDir(), Bounds{}, "option x", []*claim.Claim{made}))
	must.NoError(t, l.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "first", InitPID: os.Getpid()}))
	changed := claim.Compute{Share: 50, Max: 50, Class: claim.ClassBestEffort}
	_, err := l.ChangeCompute(t.Context(), made.ID, func(claim.Compute) (claim.Compute, error) { return changed, nil })
	must.NoError(t, err)
	claims, _, err := l.List(t.Context())
	must.NoError(t, err)
	must.NoError(t, request.Apply(t.Context(), l, t.TempDir(), Bounds{}, "option x", claims))
	must.Eq(t, &changed, recorded(t, l, made.ID))
}

// A start that has failed leaves its share with the claim, which is not what the next one may state: that goes by the slices.
func TestApply_AfterAFailedStart(t *testing.T) {
	slice := layout.GPU{Mode: claim.ModeSlice, SliceBytes: 1 << 30, Slices: 5, Shares: true}
	for name, tc := range map[string]struct {
		said layout.GPU
		had  int
		want int // the most that may be stated
	}{
		"a smaller share":             {slice, 50, 200},
		"a share that was allowed":    {slice, 900, 200},
		"slices of another size":      {layout.GPU{Mode: claim.ModeSlice, SliceBytes: 2 << 30, Slices: 2, Shares: true}, 50, 50},
		"replicas":                    {layout.GPU{Mode: claim.ModeTimeslice, Replicas: 4, Shares: true}, 50, 250},
		"a GPU that nobody tells of":  {layout.GPU{Mode: claim.ModeExclusive}, 50, 50},
		"more replicas than anywhere": {layout.GPU{Mode: claim.ModeTimeslice, Replicas: 1000, Shares: true}, 50, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l, run := newLedger(t), t.TempDir()
			must.NoError(t, layout.Write(run, map[string]layout.GPU{testGPU: tc.said}))
			request := claim.Request{
				GPU: claim.GPU{UUID: testGPU, Name: "NVIDIA H200", ContextBytes: 300 << 20}, Slices: []string{testGPU + "/slice-000"},
				LimitBytes: 1 << 30, Owner: claim.OwnerNomad, Compute: fifth(),
			}
			if tc.said.Mode == claim.ModeTimeslice {
				request.Mode, request.Slices, request.Unlimited = claim.ModeTimeslice, []string{testGPU + "/share-000"}, true
			}
			made, _, err := l.Reserve(t.Context(), request)
			must.NoError(t, err)
			must.NoError(t, Request{Share: tc.had}.Apply(t.Context(), l, t.TempDir(), Bounds{MaxShare: 1000}, "option x", []*claim.Claim{made}))
			err = Request{Share: tc.want + 1}.Apply(t.Context(), l, run, Bounds{}, "option x", []*claim.Claim{made})
			must.ErrorContains(t, err, "option x: share: this node allows claim "+made.ID+" at most "+percent.Format(tc.want))
			must.NoError(t, Request{Share: tc.want}.Apply(t.Context(), l, run, Bounds{}, "option x", []*claim.Claim{made}))
			must.Eq(t, tc.want, recorded(t, l, made.ID).Share)
		})
	}
}

func TestOver_Refuses(t *testing.T) {
	_, err := Request{Share: 600}.Over(claim.Compute{Share: 200, Max: 500, Class: claim.ClassNormal})
	must.ErrorContains(t, err, "the share, 60%, is more than the claim's ceiling, 50%; state max too")
}

func TestDescribe(t *testing.T) {
	must.Eq(t, "share 5.7%", Describe(claim.Compute{Share: 57, Max: 1000, Class: claim.ClassNormal}))
	must.Eq(t, "share 30%, at most 50%, priority high", Describe(claim.Compute{Share: 300, Max: 500, Class: claim.ClassHigh}))
}
