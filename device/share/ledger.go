package share

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// Ledger is the ledger of claims as the device plugin uses it.
type Ledger struct {
	*claim.Ledger
	Clock  *Clock
	Logger hclog.Logger

	sweeps changelog.Log
}

// InUse reports whether a claim's container is alive or may still be started.
func (l *Ledger) InUse(c *claim.Claim) bool {
	state := l.State(c, l.Clock.Now())
	return state == claim.StateRunning || state == claim.StateReserved
}

// Runs reports whether a claim's container is alive.
func (l *Ledger) Runs(c *claim.Claim) bool { return l.State(c, l.Clock.Now()) == claim.StateRunning }

// Make makes claims, all or none. The ledger itself checks which containers of older claims are alive.
func (l *Ledger) Make(ctx context.Context, requests ...claim.Request) ([]claim.Token, error) {
	_, tokens, err := l.ReserveAll(ctx, requests)
	return tokens, err
}

// ReleaseEnded releases the claims whose container is gone, and logs what goes wrong.
func (l *Ledger) ReleaseEnded(ctx context.Context) {
	released, err := l.Sweep(ctx)
	if ctx.Err() != nil {
		return
	}
	if l.sweeps.Changed("", err) && err != nil {
		l.Logger.Error("cannot release claims whose container is gone", "error", err)
	}
	for _, c := range released {
		l.Logger.Info("released a claim whose container is gone", "claim", c.ID, "gpu", c.GPU.UUID, "slices", len(c.Slices))
	}
}
