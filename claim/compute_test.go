package claim

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sync/errgroup"

	"github.com/tranche-gpu/tranche/claim/region"
)

var third = Compute{Share: 300, Max: 1000, Class: ClassNormal}

// governed is a request for a governed claim on slices of the tests' GPU.
func governed(mode Mode, c Compute, names ...string) Request {
	req := inMode(mode, testGPU, names...)
	req.Compute = &c
	return req
}

func TestCompute_IsInTheRecord(t *testing.T) {
	for name, req := range map[string]Request{
		"slice":     governed(ModeSlice, third, slicesOf(0, 1)...),
		"timeslice": governed(ModeTimeslice, third, testGPU.UUID+"/share-000"),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			made, token, err := l.Reserve(t.Context(), req)
			must.NoError(t, err)
			must.Eq(t, &third, made.Compute)
			_, err = region.ReadHeader(l.regionPath(made.ID)) // the shadow library needs it, with a limit or without
			must.NoError(t, err)
			found, err := l.Lookup(t.Context(), token)
			must.NoError(t, err)
			must.Eq(t, &third, found.Compute)
			found.Compute.Share = 1 // the caller's own
			found, err = l.Lookup(t.Context(), token)
			must.NoError(t, err)
			must.Eq(t, &third, found.Compute)
		})
	}
}

func TestCompute_Refused(t *testing.T) {
	for name, c := range map[string]struct {
		req  Request
		want string
	}{
		"no share":        {governed(ModeSlice, Compute{Max: 1000, Class: ClassNormal}, slicesOf(0, 0)...), "share of compute must be 1 to 1000"},
		"more than all":   {governed(ModeSlice, Compute{Share: 1001, Max: 1001, Class: ClassNormal}, slicesOf(0, 0)...), "share of compute must be 1 to 1000"},
		"max below share": {governed(ModeSlice, Compute{Share: 300, Max: 299, Class: ClassNormal}, slicesOf(0, 0)...), "ceiling of compute must be from the share, 300"},
		"no class":        {governed(ModeSlice, Compute{Share: 300, Max: 300}, slicesOf(0, 0)...), "no priority"},
		"unknown class":   {governed(ModeSlice, Compute{Share: 300, Max: 300, Class: "urgent"}, slicesOf(0, 0)...), `"urgent" is no priority; there are high, normal and best-effort`},
		"MPS":             {governed(ModeMPS, third, slicesOf(0, 0)...), "requires mode slice or timeslice, got mode mps"},
		"the whole GPU":   {governed(ModeExclusive, third, testGPU.UUID), "got mode exclusive"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := newLedger(t).Reserve(t.Context(), c.req)
			must.ErrorContains(t, err, c.want)
		})
	}
}

// setCompute gives a claim a part, whatever it has.
func setCompute(t *testing.T, l *Ledger, id string, to Compute) error {
	t.Helper()
	_, err := l.ChangeCompute(t.Context(), id, func(Compute) (Compute, error) { return to, nil })
	return err
}

func TestChangeCompute(t *testing.T) {
	l := newLedger(t)
	made, token, err := l.Reserve(t.Context(), governed(ModeSlice, third, slicesOf(0, 0)...))
	must.NoError(t, err)
	must.NoError(t, l.Bind(t.Context(), made.ID, Container{Runtime: "test", ID: "alive", InitPID: os.Getpid()}))
	to := Compute{Share: 400, Max: 600, Class: ClassHigh}
	must.NoError(t, setCompute(t, l, made.ID, to))
	found, err := l.Lookup(t.Context(), token)
	must.NoError(t, err)
	must.Eq(t, &to, found.Compute)
	must.Eq(t, "alive", found.Container.ID)

	must.ErrorContains(t, setCompute(t, l, made.ID, Compute{Share: 400, Max: 1, Class: ClassHigh}), "ceiling")
	must.ErrorIs(t, setCompute(t, l, "00000000", to), ErrUnknownClaim)
	other, _, err := l.Reserve(t.Context(), inMode(ModeSlice, testGPU, slicesOf(1, 1)...))
	must.NoError(t, err)
	must.ErrorIs(t, setCompute(t, l, other.ID, to), ErrNotGoverned)
	found, err = l.Lookup(t.Context(), token)
	must.NoError(t, err)
	must.Eq(t, &to, found.Compute)
}

// A change takes no slices from others: it is not the start of a container.
func TestChangeCompute_KeepsTheState(t *testing.T) {
	for name, prepare := range map[string]func(l *Ledger, id string) error{
		"released": func(l *Ledger, id string) error {
			endedContainer(t, l, id)
			_, err := l.Sweep(t.Context())
			return err
		},
		"never started": func(l *Ledger, id string) error { return l.Refresh(id, l.now()) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			later(l, -time.Hour)
			made, token, err := l.Reserve(t.Context(), governed(ModeSlice, third, slicesOf(0, 0)...))
			must.NoError(t, err)
			must.NoError(t, prepare(l, made.ID))
			later(l, time.Hour)
			must.NoError(t, setCompute(t, l, made.ID, Compute{Share: 400, Max: 600, Class: ClassHigh}))
			found, err := l.Lookup(t.Context(), token)
			must.NoError(t, err)
			must.Eq(t, 400, found.Compute.Share)
			must.Eq(t, StateDormant, l.State(found, l.now()))
		})
	}
}

// The error says what to do where the claim's mode can have no shares.
func TestCheckGoverned(t *testing.T) {
	must.NoError(t, (&Claim{Compute: &Compute{Share: 400, Max: 1000, Class: ClassNormal}}).CheckGoverned())
	for want, c := range map[string]*Claim{
		`set compute = "shares" in the device plugin's configuration`: {Mode: ModeTimeslice},
		`its GPU is in mode "exclusive", and a whole GPU has nobody`:  {Mode: ModeExclusive},
		`its GPU is in mode "mps", and MPS divides`:                   {Mode: ModeMPS},
		`its GPU is in mode "mig", and MIG divides`:                   {Mode: ModeMIG},
		"start the command with --share, --max or --priority":         {Owner: OwnerRun},
	} {
		err := c.CheckGoverned()
		must.ErrorIs(t, err, ErrNotGoverned)
		must.ErrorContains(t, err, want)
	}
}

// Of changes at the same time, also by other processes' ledgers, none is lost.
func TestChangeCompute_AtOnce(t *testing.T) {
	l := newLedger(t)
	made, _, err := l.Reserve(t.Context(), governed(ModeSlice, third, slicesOf(0, 0)...))
	must.NoError(t, err)
	const ledgers, changes = 8, 40
	var group errgroup.Group
	for range ledgers {
		other, err := Open(Options{StateDir: filepath.Dir(l.claims), RunDir: filepath.Dir(l.regions)})
		must.NoError(t, err)
		group.Go(func() error {
			for range changes {
				if _, err := other.ChangeCompute(t.Context(), made.ID, func(had Compute) (Compute, error) {
					had.Share++
					return had, nil
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must.NoError(t, group.Wait())
	must.Eq(t, made.Compute.Share+ledgers*changes, list(t, l)[0].Compute.Share)
}

// A claim that is not governed has a record that programs without shares read.
func TestCompute_OtherRecordsAreAsBefore(t *testing.T) {
	l := newLedger(t)
	made, _, err := l.Reserve(context.Background(), inMode(ModeSlice, testGPU, slicesOf(0, 1)...))
	must.NoError(t, err)
	checkKnownBefore(t, l, made.ID)
	text, err := os.ReadFile(filepath.Join(l.claims, made.ID+".json"))
	must.NoError(t, err)
	must.StrNotContains(t, string(text), "compute\"")
}

func TestParseClass(t *testing.T) {
	for text, want := range map[string]Class{"": ClassNormal, "high": ClassHigh, "normal": ClassNormal, "best-effort": ClassBestEffort} {
		class, err := ParseClass(text)
		must.NoError(t, err)
		must.Eq(t, want, class)
	}
	_, err := ParseClass("low")
	must.ErrorContains(t, err, "high, normal and best-effort")
}
