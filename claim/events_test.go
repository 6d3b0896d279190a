package claim

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/journal"
)

// events returns the events of a ledger, and a short form of each.
func events(t *testing.T, l *Ledger) (all []journal.Event, short []string) {
	t.Helper()
	end, err := l.Journal().End()
	must.NoError(t, err)
	loss, err := l.Journal().Read(journal.Position{Segment: 1}, end, func(e journal.Event) error {
		all = append(all, e)
		short = append(short, string(e.Kind)+" "+string(e.Was))
		return nil
	})
	must.NoError(t, err)
	must.Eq(t, journal.Loss{}, loss)
	return all, short
}

func clockOf(l *Ledger) func(time.Duration) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	l.now = func() time.Time { return now }
	return func(d time.Duration) { now = now.Add(d) }
}

// Each change of a claim is an event with the state until then, at the time that the record has.
func TestJournal_ChangesOfAClaim(t *testing.T) {
	l := newLedger(t)
	pass := clockOf(l)
	ctx := t.Context()
	made, _ := reserve(t, l, 0, 3)
	pass(time.Second)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, made.ID, container("c1", init)))
	pass(time.Second)
	endProcess(init)
	must.NoError(t, l.Release(ctx, made.ID, "c1"))
	pass(time.Second)
	again := startProcess(t)
	must.NoError(t, l.Bind(ctx, made.ID, container("c2", again)))
	pass(time.Second)
	endProcess(again)
	_, err := l.Sweep(ctx)
	must.NoError(t, err)
	pass(time.Second)
	later, _ := reserve(t, l, 3, 4)
	pass(time.Second)
	must.NoError(t, l.Drop(ctx, later.ID))

	all, short := events(t, l)
	must.Eq(t, []string{
		"open ", "bind reserved", "release reserved", "bind dormant", "release reserved",
		"open ", "supersede dormant", "remove reserved",
	}, short)
	created := made.Created.UnixMilli()
	for i, second := range []int64{0, 1, 2, 3, 4, 5, 5, 6} {
		must.Eq(t, created+1000*second, all[i].At, must.Sprint(short[i]))
	}
	must.Eq(t, made.Terms(), all[2].Terms)
	must.Eq(t, 4*made.SliceSize(), all[2].Terms.Bytes())
	must.Eq(t, later.ID, all[6].By)
	must.Eq(t, made.ID, all[6].Claim)
	must.Eq(t, created, all[6].Created)
}

// A change of what a claim reserves is an event with what held until then; other changes are none.
func TestJournal_Resize(t *testing.T) {
	l := newLedger(t)
	req := request(0, 1)
	req.Compute = &Compute{Share: 300, Max: 1000, Class: ClassNormal}
	made, _, err := l.Reserve(t.Context(), req)
	must.NoError(t, err)
	must.NoError(t, prepare(l, made.ID, "c1", 1<<30))
	must.NoError(t, l.NoteWorkload(t.Context(), made.ID, Workload{Namespace: "default", Job: "=1+1"}))
	must.NoError(t, setCompute(t, l, made.ID, Compute{Share: 500, Max: 1000, Class: ClassNormal}))
	all, short := events(t, l)
	must.Eq(t, []string{"open ", "resize reserved"}, short)
	must.Eq(t, 300, all[1].Terms.Share)
	must.Eq(t, 500, list(t, l)[0].Terms().Share)
	must.StrContains(t, string(all[1].Workload), `"job":"=1+1"`)
}

// A claim that could not be made, or was made with others and taken back, has no time.
func TestJournal_ClaimsThatWereNotMade(t *testing.T) {
	l := newLedger(t)
	reserve(t, l, 0, 0)
	must.NoError(t, os.MkdirAll(l.groupPath(), 0o700)) // in the way of the second claim's group
	_, _, err := l.ReserveAll(t.Context(), []Request{request(1, 1), wholeGPUs(1, 1)[0]})
	must.Error(t, err)
	must.NoError(t, os.Remove(l.groupPath()))
	l.sync = func(f *os.File) error {
		if filepath.Base(f.Name()) == unfinishedName {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	_, _, err = l.Reserve(t.Context(), request(2, 2))
	must.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, short := events(t, l)
	must.Eq(t, []string{"open ", "open ", "undo reserved"}, short)
}

// A journal that cannot be written keeps no claim from being made, bound and released.
func TestJournal_UnusableStopsNothing(t *testing.T) {
	l := newLedger(t)
	must.NoError(t, os.MkdirAll(filepath.Dir(l.journal.Dir()), 0o700))
	must.NoError(t, os.WriteFile(l.journal.Dir(), nil, 0o600))
	made, _ := reserve(t, l, 0, 0)
	init := startProcess(t)
	must.NoError(t, l.Bind(t.Context(), made.ID, container("c1", init)))
	_, err := l.Cut(t.Context())
	must.ErrorContains(t, err, l.journal.Dir()+" has to be a directory, and all above it: remove what is in the way")

	endProcess(init)
	must.NoError(t, l.Release(t.Context(), made.ID, "c1"))
	must.NoError(t, os.Remove(l.journal.Dir()))
	cut, err := l.Cut(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, cut.Claims)
	must.Eq(t, journal.Dormant, cut.Claims[0].Reservation(cut.Boot))
}

// On a full disk claims are still released, and the journal has that: it has reserved the space.
func TestJournal_FullDisk(t *testing.T) {
	disk := smallDisk(t, "512k")
	l := ledgerAt(t, disk, t.TempDir())
	made, _ := reserve(t, l, 0, 1)
	init := startProcess(t)
	makeRoom := fillUp(t, disk)
	must.NoError(t, l.Bind(t.Context(), made.ID, container("c1", init)))
	endProcess(init)
	must.NoError(t, l.Release(t.Context(), made.ID, "c1"))
	makeRoom()
	_, short := events(t, l)
	must.Eq(t, []string{"open ", "bind reserved", "release reserved"}, short)
	must.Nil(t, l.journal.Gap())
}

// The journal takes no space that the ledger may need, and the gap is seen.
func TestJournal_LeavesSpaceToTheLedger(t *testing.T) {
	l := ledgerAt(t, smallDisk(t, "64k"), t.TempDir())
	reserve(t, l, 0, 1)
	_, short := events(t, l)
	must.SliceEmpty(t, short)
	cut, err := l.Cut(t.Context())
	must.NoError(t, err)
	must.NotNil(t, cut.Missing)
	must.NoError(t, l.EndGap(t.Context(), cut.Missing))
	cut, err = l.Cut(t.Context())
	must.NoError(t, err)
	must.Nil(t, cut.Missing)
}
