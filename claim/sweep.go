package claim

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/tranche-gpu/tranche/claim/journal"
	"github.com/tranche-gpu/tranche/claim/region"
)

var zeroTime time.Time

// Sweep releases the claims whose container is gone, removes those that no container will bind again, which for Nomad's claims
// is when their allocation is gone or after DormantFor, and removes regions that have no claim or are no longer used. It returns the claims that it released.
func (l *Ledger) Sweep(ctx context.Context) (released []*Claim, err error) {
	err = l.read(ctx, func(snap *snapshot) error {
		var claimsErr error
		released, claimsErr = l.sweepClaims(snap)
		return errors.Join(claimsErr, l.sweepRegions(snap), l.sweepYielded(snap), l.sweepWorkloads(snap))
	})
	return released, err
}

// sweepClaims is the part of Sweep for claims.
func (l *Ledger) sweepClaims(snap *snapshot) (released []*Claim, err error) {
	var errs []error
	for _, r := range snap.sorted() {
		switch {
		case r.held():
		case r.Container != nil && r.Released.IsZero():
			was := r.claim()
			if err := l.release(snap, r); err != nil {
				errs = append(errs, err)
				continue
			}
			was.Released = l.now()
			released = append(released, was)
		case !r.comesBack():
			l.sweepExternal(snap, r)
		case l.now().Sub(r.dormantSince()) > DormantFor:
			l.logger.Info("claim expired", "claim", r.ID, "dormant_since", r.dormantSince(), "workload", l.workloadText(r.ID))
			errs = append(errs, l.remove(snap, r))
		case l.allocationGone(r):
			l.logger.Info("removing a claim whose allocation is gone", "claim", r.ID, "workload", l.workloadText(r.ID))
			errs = append(errs, l.remove(snap, r))
		case !r.Released.IsZero():
			l.sweepReleased(r)
		}
	}
	return released, errors.Join(errs...)
}

// allocationGone reports whether a dormant claim's allocation is known to be gone, so that its task is never restarted in place.
func (l *Ledger) allocationGone(r *record) bool {
	w, _ := l.Workload(r.ID)
	return w.gone() && l.state(r) == StateDormant
}

// sweepReleased removes the region of a claim without a container that processes of the container still used when the
// claim was released. The next container may be on its way and count on the region: its start refreshes the claim.
func (l *Ledger) sweepReleased(r *record) {
	dir := l.regionPath(r.ID)
	if _, err := os.Lstat(dir); err != nil || l.state(r) == StateReserved {
		return
	}
	if inUse, err := region.InUse(dir); err == nil && inUse {
		return
	}
	l.logger.Info("removing the region of a released claim", "claim", r.ID)
	l.removeRegion(r.ID)
}

// dormantSince returns when the claim was last used.
func (r *record) dormantSince() time.Time {
	if r.Released.IsZero() {
		return r.Created
	}
	return r.Released
}

// sweepRegions removes regions that a process left behind when it died while it made or removed a claim. The region of an
// unreadable record stays: a container may still use it.
func (l *Ledger) sweepRegions(snap *snapshot) error {
	entries, err := os.ReadDir(l.regions)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for id := range snap.records {
		keep[id] = true
	}
	for _, p := range snap.problems {
		keep[p.ClaimID] = true
	}
	for _, e := range entries {
		if keep[e.Name()] {
			continue
		}
		if inUse, err := region.InUse(l.regionPath(e.Name())); err == nil && inUse {
			continue
		}
		l.logger.Info("removing a region without a claim", "region", e.Name())
		l.removeRegion(e.Name())
	}
	return nil
}

// Drop removes a claim and its region. If a container that lives or is being started has it, the error is a *HeldError.
func (l *Ledger) Drop(ctx context.Context, id string) error {
	return l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		if l.used(r) {
			return &HeldError{Claim: r.claim(), Slices: r.claim().Slices}
		}
		workload := l.workloadText(id)
		if err := l.remove(snap, r); err != nil {
			return err
		}
		l.logger.Info("claim dropped", "claim", id, "workload", workload)
		return nil
	})
}

// DropInUse removes a claim even if it is in use. Its region stays as long as a process uses it, so that the processes that
// have memory keep their limit; later reservations do not know of that memory.
func (l *Ledger) DropInUse(ctx context.Context, id string) error {
	return l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		l.note(journal.Remove, r)
		workload := l.workloadText(id)
		if err := l.removeRecord(id); err != nil {
			return accessError(err)
		}
		delete(snap.records, id)
		l.logger.Warn("claim dropped although it may be in use", "claim", id, "owner", r.Owner, "workload", workload)
		return l.sweepRegions(snap)
	})
}
