package device

import (
	"context"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mig"
)

// scanner updates the inventory from the driver.
type scanner struct {
	driver    *share.Driver
	check     *configCheck
	health    *healthMonitor
	inventory *inventory
	onDemand  *mig.OnDemand
	costs     share.ContextCosts
	prober    *prober
	wake      func()
}

// scan queries the driver for the GPUs. Errors are logged and become part of the inventory; the error is returned to
// callers that need an answer now.
func (s *scanner) scan(ctx context.Context) error {
	bounded, cancel := s.driver.Limit(ctx)
	defer cancel()
	found, err := s.driver.Read(bounded)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var conditions, noDriverLimits map[string]string
	if err == nil {
		s.check.logIdle(found)
		conditions = s.health.conditions(bounded, found.GPUs)
		noDriverLimits = s.prober.probe(bounded, found)
	} else {
		s.prober.forget()
	}
	s.health.forgetAbsent(found, err)
	usable, changed := s.inventory.update(found, conditions, noDriverLimits, err)
	for uuid, sizes := range s.onDemand.Sizes(bounded, s.inventory.list()) {
		s.inventory.setSizes(uuid, sizes)
		changed = true
	}
	for _, g := range usable {
		if g.Mode != claim.ModeSlice {
			continue // no limit has to hold a context there, or it is measured before the GPU goes behind MPS
		}
		// Measured now, the cost is known when the first reservation needs it.
		go func() { _, _ = s.costs.Cost(ctx, g.CostKey()) }()
	}
	if changed {
		s.wake()
	}
	return err
}
