package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/journal"
)

// Collect accounts what happened to claims since the last collection, and the time that living claims have had up to now. All
// of it is one transaction: whoever is killed on the way has changed nothing. samples may be nil; gpus are what is known of
// the node's GPUs by their UUIDs. It returns the gaps that it has found, which are in the database then.
func (s *Store) Collect(ctx context.Context, ledger *claim.Ledger, gpus map[string]GPU, samples *Samples) ([]Gap, error) {
	var cut claim.Cut
	var gaps []Gap
	err := s.in(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		cut, gaps, err = s.collect(ctx, tx, ledger, gpus, samples)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("account the usage of claims in %s: %w", s.name, s.explain(err))
	}
	s.collected.Store(true)
	s.sinceBoot.Store(int64(cut.SinceBoot))
	now := journal.Milliseconds(cut.At)
	samples.forget(now, now)
	// What follows may be missing if this process is killed here. The next collection does it then.
	if cut.Missing != nil {
		err = ledger.EndGap(ctx, cut.Missing)
	}
	return gaps, s.explain(errors.Join(err, ledger.Journal().RemoveBefore(cut.End)))
}

func (s *Store) collect(ctx context.Context, tx *sql.Tx, ledger *claim.Ledger, gpus map[string]GPU, samples *Samples) (cut claim.Cut, _ []Gap, err error) {
	t, err := s.open(ctx, tx)
	if err != nil {
		return cut, nil, err
	}
	known, err := t.mergeGPUs(gpus)
	if err != nil {
		return cut, nil, err
	}
	b := &books{
		gpus: known, samples: samples, find: t.find, hours: map[hourKey]hourSum{}, devices: map[string]device{},
	}
	var from journal.Position
	if from, err = t.readWatermark(b); err != nil {
		return cut, nil, err
	}
	if b.accounts, err = t.openAccounts(); err != nil {
		return cut, nil, err
	}
	if cut, err = ledger.Cut(ctx); err != nil {
		return cut, nil, err
	}
	if s.collected.Load() && b.boot != cut.Boot {
		return cut, nil, errNotAlone
	}
	b.bounds = bounds{boot: cut.Boot, collected: b.seen, sinceCollected: (cut.SinceBoot - time.Duration(s.sinceBoot.Load())).Milliseconds() + 1,
		sinceBoot: cut.SinceBoot.Milliseconds() + 1}
	if err := b.read(ledger.Journal(), from, cut); err != nil {
		return cut, nil, err
	}
	if err := b.cut(cut); err != nil {
		return cut, nil, err
	}
	for k, a := range b.accounts {
		if w, ok := ledger.Workload(k.id); ok && !a.ended {
			a.learn(w)
		}
	}
	if err := ledger.Journal().Sync(cut.End); err != nil {
		return cut, nil, err
	}
	var gaps []Gap
	for _, g := range b.gaps {
		gaps = append(gaps, newGap(s.place.Node, g.from, g.to, g.reason))
	}
	return cut, gaps, t.write(b, s.place.Node, cut.End)
}

// errNotAlone is returned where a collection since the last of this process was in another boot, which no process outlives.
var errNotAlone = errors.New("another machine has collected as this node, or the database is an older copy; if the state directory is a copy of " +
	"another node's, remove " + nodeNumberName + " and journal from it; then restart tranche-agent")

// open begins a collection: it locks the node. The rows that a node new to a shared database had in its own are copied.
func (s *Store) open(ctx context.Context, tx *sql.Tx) (tables, error) {
	number, err := s.node(s.place.StateDir)
	t := tables{ctx, tx, s.dialect, number}
	if err != nil {
		return t, err
	}
	fresh, err := t.lockNode(s.place.Node)
	if err == nil && fresh && s.place.Database != "" && Exists(s.place.StateDir) {
		if err = t.copyOwn(s.place); err == nil {
			_, err = t.lockNode(s.place.Node) // nothing was collected there
		}
	}
	return t, err
}

// read accounts the events up to a cut, and names what is missing of them.
func (b *books) read(j *journal.Journal, from journal.Position, cut claim.Cut) error {
	cutOff := cut.End.Before(from)
	if cutOff { // or removed, and has begun again
		from = journal.Position{Segment: 1}
	}
	before, first := b.seen, int64(0)
	loss, err := j.Read(from, cut.End, func(e journal.Event) error {
		if cutOff && e.At < before {
			return nil // it was accounted, and others that are missing now came after it
		}
		if first == 0 {
			first = e.At
		}
		return b.event(e)
	})
	if err != nil || before == 0 {
		return err // without an earlier collection nothing is missing: accounting begins here
	}
	at := journal.Milliseconds(cut.At)
	if first == 0 {
		first = at
	}
	if loss.Missing || cutOff {
		b.gaps = append(b.gaps, gap{before, max(first, before), "parts of the journal of claims were removed before they were collected; " +
			"claims that began and ended in this time are missing"})
	}
	if loss.Damaged > 0 {
		b.gaps = append(b.gaps, gap{before, at, fmt.Sprintf("%d events in the journal of claims are damaged; "+
			"see whether its disk fails (`dmesg`)", loss.Damaged)})
	}
	if cut.Missing != nil {
		b.gaps = append(b.gaps, gap{journal.Milliseconds(cut.Missing.Since), at, "the journal of claims could not be written; claims that began and " +
			"ended in this time are missing, and others are accounted to the collection"})
	}
	return nil
}

// Prune removes this node's rows of hours before a time, and the claims that have none.
func (s *Store) Prune(ctx context.Context, before time.Time) error {
	hour := before.UnixMilli() / hourMillis
	err := s.in(ctx, func(ctx context.Context, tx *sql.Tx) error {
		t, err := s.open(ctx, tx)
		if err != nil {
			return err
		}
		for statement, bound := range map[string]int64{
			"DELETE FROM hour WHERE node = $1 AND hour < $2":             hour,
			"DELETE FROM gap WHERE node = $1 AND until < $2":             hour * hourMillis,
			"DELETE FROM claim WHERE node = $1 AND ended AND until < $2": hour * hourMillis, // no row of a claim is later
		} {
			if err := t.exec(statement, t.number, bound); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove old rows of the usage database %s: %w", s.name, s.explain(err))
	}
	return nil
}
