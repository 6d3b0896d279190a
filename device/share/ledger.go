package share

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
)

// StartTimeout is how long a claim without a container stays in use after its reservation, or after whoever starts the
// container last refreshed it. That happens every minute, while an image is pulled, for example.
const StartTimeout = 10 * time.Minute

// Ledger is the ledger of claims as the device plugin uses it.
type Ledger struct {
	*claim.Ledger
	Clock  *Clock
	Logger hclog.Logger

	sweeps ChangeLog
}

// InUse reports whether a claim's container is alive or may still be started.
func (l *Ledger) InUse(c *claim.Claim) bool {
	if c.Container == nil {
		return l.Clock.Now().Sub(l.Refreshed(c)) < StartTimeout
	}
	return c.Released.IsZero() && claim.Alive(*c.Container)
}

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
