package claim

import (
	"context"
	"time"

	"github.com/tranche-gpu/tranche/claim/region"
)

// BindWithin is how long an external claim waits for its container. Between the reservation and the binding is only the start
// of an OCI runtime up to its hooks, so a claim that is unbound after this time gets no container.
const BindWithin = 2 * time.Minute

// comesBack reports whether a container may bind the claim again. Nomad restarts a task in place with its claim token; a
// container outside Nomad gets a new claim for each start.
func (c *Claim) comesBack() bool { return c.Owner != OwnerExternal }

// Starting reports whether the claim's container is being started. The OCI runtime that creates the container waits for its
// hooks, so once that process has ended without binding the claim, the container does not start. No hook reports that: no
// prestart hook has run by then, and crun runs no poststop hooks if create fails.
func (c *Claim) Starting(now time.Time) bool {
	return c.Owner == OwnerExternal && c.Container == nil && now.Sub(c.Created) <= BindWithin &&
		(c.Starter == nil || c.Starter.MayLive())
}

// used reports whether the claim is in use and must not be superseded.
func (l *Ledger) used(r *record) bool {
	return r.held() || r.Starting(l.now()) || r.beingMade(l.now()) || !r.comesBack() && r.Container != nil && l.lingers(r)
}

// lingers reports whether processes still use the claim although its container's first process has ended: they have memory of
// the GPU, which is free only when they have ended.
func (l *Ledger) lingers(r *record) bool {
	inUse, err := region.InUse(l.regionPath(r.ID))
	return err == nil && inUse
}

// sweepExternal removes an external claim that has no container any more.
func (l *Ledger) sweepExternal(snap *snapshot, r *record) (removed bool) {
	if l.used(r) {
		return false
	}
	if r.Container == nil {
		l.logger.Warn("removing a claim whose container never came", "claim", r.ID, "created", r.Created)
	} else {
		l.logger.Info("removing a claim whose container is gone", "claim", r.ID, "container", r.Container.ID)
	}
	if err := l.remove(snap, r); err != nil {
		l.logger.Warn("cannot remove an abandoned claim; trying again later", "claim", r.ID, "error", err)
		return false
	}
	return true
}

// Cancel removes a claim of ReserveFit whose container does not start, or a claim whose MIG instance could not be created. A
// claim that a container has, or that is gone, does not change.
func (l *Ledger) Cancel(ctx context.Context, id string) error {
	return l.read(ctx, func(snap *snapshot) error {
		r, ok := snap.records[id]
		if !ok || r.Container != nil || r.comesBack() && !r.Making() {
			return nil
		}
		l.logger.Info("claim cancelled", "claim", id)
		return l.remove(snap, r)
	})
}
