package claim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tranche-gpu/tranche/claim/journal"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// journalDir is the directory of the journal in the state directory.
const journalDir = "journal"

// note appends an event to the journal before the ledger changes. A claim is made, bound and released even if that fails, since
// accounting must not stop a task: the next Cut shows the claims as they are then, and since when events are missing.
func (l *Ledger) note(kind journal.Kind, r *record) {
	w, _ := l.Workload(r.ID)
	l.append(l.event(kind, r, w))
}

// noteOpen is note for a new claim, or one that had yielded: nothing is known of its workload yet.
func (l *Ledger) noteOpen(r *record) {
	e := l.event(journal.Open, r, Workload{})
	e.Was, e.FreeSince = journal.Absent, 0
	l.append(e)
}

// event returns an event with what holds until now.
func (l *Ledger) event(kind journal.Kind, r *record, w Workload) journal.Event {
	boot, _ := proc.BootID()
	e := journal.Event{
		Kind: kind, At: journal.Milliseconds(l.now()), Boot: boot,
		Claim: r.ID, Created: journal.Milliseconds(r.Created), Owner: r.Owner,
		Was: r.Reservation(boot), FreeSince: l.freeSince(&r.Claim), Terms: r.Terms(),
	}
	if !w.IsZero() {
		e.Workload, _ = json.Marshal(w)
	}
	return e
}

// noteSuperseded is note for a claim that another one supersedes: it is void since that one exists.
func (l *Ledger) noteSuperseded(older, by *record, w Workload) {
	at := by.Created
	if by.MIG != nil && !by.MIG.Created.IsZero() {
		at = by.MIG.Created
	}
	e := l.event(journal.Supersede, older, w)
	e.At, e.By = journal.Milliseconds(at), by.ID
	l.append(e)
}

// noteChange is note for the replacement of a record: the event is what differs. Nothing is noted of what no bill depends on.
func (l *Ledger) noteChange(older, r *record) {
	switch {
	case older == nil:
	case older.Released.IsZero() && !r.Released.IsZero():
		w, _ := l.Workload(older.ID)
		e := l.event(journal.Release, older, w)
		e.At = journal.Milliseconds(r.Released)
		l.append(e)
	case r.Container != nil && (older.Container == nil || *r.Container != *older.Container || !older.Released.IsZero() && r.Released.IsZero()):
		l.note(journal.Bind, older)
	case older.Terms() != r.Terms():
		l.note(journal.Resize, older)
	}
}

// append appends an event, and logs the first error of many: the gap in the journal remembers that.
func (l *Ledger) append(e journal.Event) {
	known := l.journal.Gap() != nil
	if err := l.journal.Append(e); err != nil && !known {
		l.logger.Warn("changes of claims are missing in the journal; the next collection of usage takes them from the ledger, to the minute",
			"claim", e.Claim, "event", string(e.Kind), "error", explain(l.journal.Dir(), err))
	}
}

// Terms returns what the claim reserves, as events have it.
func (c *Claim) Terms() journal.Terms {
	t := journal.Terms{
		GPU: c.PhysicalGPU(), Index: c.GPU.Index, Model: c.GPU.Name, Mode: string(c.Mode.orSlice()),
		Slices: 1, SliceBytes: c.LimitBytes,
	}
	if c.MIG != nil {
		t.Index = c.MIG.GPUIndex
	}
	if c.partsMemory() {
		t.Slices, t.SliceBytes = len(c.Slices), c.SliceSize()
	}
	if c.Compute != nil {
		t.Share = c.Compute.Share
	}
	return t
}

// Reservation returns whether the claim keeps its slices from others, in a boot, as events have it.
func (c *Claim) Reservation(boot string) journal.State {
	switch {
	case !c.Released.IsZero():
		return journal.Dormant
	case c.Container != nil && c.Container.BootID != boot:
		return journal.Stale
	}
	return journal.Reserved
}

// freeSince returns since when a claim without a container yields to others, in milliseconds since 1970; 0 if it does not.
func (l *Ledger) freeSince(c *Claim) int64 {
	if now := l.now(); c.Container != nil || !c.Released.IsZero() || l.State(c, now) != StateDormant {
		return 0
	}
	return journal.Milliseconds(l.Refreshed(c).Add(StartTimeout))
}

// Cut is the ledger at one moment, and the place of that moment in the journal: all events before End happened before it, and
// all others after it.
type Cut struct {
	At   time.Time
	Boot string
	// SinceBoot is how long ago that boot was.
	SinceBoot time.Duration
	Claims    []*Claim
	// FreeSince is since when claims whose container did not come yield to others, in milliseconds since 1970, by claim ID.
	FreeSince map[string]int64
	// Unreadable are the IDs of claims whose records cannot be read.
	Unreadable map[string]bool
	End        journal.Position
	// Missing says that events are missing; nil if none are.
	Missing *journal.Gap
}

// Journal returns the journal of the ledger's changes.
func (l *Ledger) Journal() *journal.Journal { return l.journal }

// Cut returns all claims, and where the journal ends.
func (l *Ledger) Cut(ctx context.Context) (Cut, error) {
	c := Cut{FreeSince: map[string]int64{}, Unreadable: map[string]bool{}}
	err := l.read(ctx, func(snap *snapshot) (err error) {
		if c.Boot, err = proc.BootID(); err != nil {
			return err
		}
		for _, r := range snap.sorted() {
			c.Claims = append(c.Claims, r.claim())
			if since := l.freeSince(&r.Claim); since > 0 {
				c.FreeSince[r.ID] = since
			}
		}
		for _, p := range snap.problems {
			c.Unreadable[p.ClaimID] = true
		}
		c.Missing = l.journal.Gap()
		c.End, err = l.journal.End()
		c.At = l.now()
		if err != nil {
			return explain(l.journal.Dir(), err)
		}
		c.SinceBoot, err = proc.SinceBoot()
		return err
	})
	return c, accessError(err)
}

// EndGap removes the record of missing events that a Cut had, once they were reported.
func (l *Ledger) EndGap(ctx context.Context, seen *journal.Gap) error {
	return l.read(ctx, func(*snapshot) error { return l.journal.EndGap(seen) })
}
