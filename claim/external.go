package claim

import (
	"context"
	"time"

	"github.com/tranche-gpu/tranche/claim/region"
)

// BindWithin is how long a claim that was made outside Nomad waits for its container. Between the claim and the binding
// lie the start of an OCI runtime and what it does before its hooks, so that one which is still unbound by then has none
// that will come.
const BindWithin = 2 * time.Minute

// comesBack tells whether a container may come back for the claim. Nomad restarts a task in place by its claim token;
// whoever starts a container outside Nomad makes a claim anew each time.
func (c *Claim) comesBack() bool { return c.Owner != OwnerExternal }

// Starting tells whether the claim was made for a container that is being started at the moment. The OCI runtime that
// builds it waits for its hooks, so once that process is gone, unbound, no container comes. Nobody says so: no prestart hook
// has run by then, and at poststop crun runs none for what it failed to build.
func (c *Claim) Starting(now time.Time) bool {
	return c.Owner == OwnerExternal && c.Container == nil && now.Sub(c.Created) <= BindWithin &&
		(c.Starter == nil || c.Starter.MayLive())
}

// used tells whether the claim must not be taken from whoever has it.
func (l *Ledger) used(r *record) bool {
	return r.held() || r.Starting(l.now()) || r.beingMade(l.now()) || !r.comesBack() && r.Container != nil && l.lingers(r)
}

// lingers tells whether processes still use the claim although its container's first process is gone: they hold memory
// of the GPU, which is nobody else's before they end.
func (l *Ledger) lingers(r *record) bool {
	inUse, err := region.InUse(l.regionPath(r.ID))
	return err == nil && inUse
}

// sweepExternal removes a claim that was made outside Nomad and has no container any more.
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
		l.logger.Warn("a claim that nobody comes back for could not be removed; trying again later", "claim", r.ID, "error", err)
		return false
	}
	return true
}

// Cancel takes back a claim of ReserveFit whose container is not to start after all, or one whose instance by MIG could
// not be made. One that a container has, or that is gone, is left as it is.
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
