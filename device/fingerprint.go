package device

import (
	"context"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/contextcost"
)

// fingerprint sends what devices there are: at once, even if there are none,
// since the agent waits for that before it takes on work; and then whenever
// something changed, but only then, for each message makes Nomad register the
// node anew.
func (n *node) fingerprint(ctx context.Context, out chan<- *ndevice.FingerprintResponse) {
	defer close(out)
	n.logger.Info("looking for GPUs", "driver_root", n.driverRoot, "period", n.fingerprintPeriod.String(),
		"mode", string(n.sharing.others.mode), "slice_memory", memsize.Format(n.sharing.others.sliceBytes),
		"gpu_blocks", len(n.sharing.blocks), "ignored_gpu_ids", n.ignoredUUIDs())
	ticker := time.NewTicker(n.fingerprintPeriod)
	defer ticker.Stop()
	ledger := n.watchLedger(ctx)
	events := make(chan struct{})
	go func() { defer close(events); n.watchEvents(ctx) }()
	defer func() { <-events }()
	defer n.mps.close()

	tell := &teller{node: n}
	for scan := true; ; {
		if scan {
			n.sweep(ctx)
			_ = n.scan(ctx)
			n.tellLayout()
			n.mps.tend(ctx)
			// MIG is turned on first, and instances are made then.
			for range 2 {
				if !n.layOut(ctx) {
					break
				}
				_ = n.scan(ctx)
			}
			n.lookForStrangers(ctx)
			n.tellHealth()
		}
		n.tendAll(ctx)
		taken := n.takenElsewhere(ctx)
		if groups, ok := tell.news(taken); ok {
			select {
			case out <- ndevice.NewFingerprint(groups...):
				tell.sent(groups, taken.calm)
			case <-ctx.Done():
				return
			}
		}
		scan = true
		select {
		case <-ticker.C:
		case <-n.changed:
		case <-n.strangers.due:
			n.strangers.due = nil
		case <-ledger:
			scan = false // the GPUs have nothing to do with it, but for MIG instances made on demand
		case <-n.mps.keeper.Changed():
			scan = false
		case <-tell.due:
			scan, tell.due = false, nil
		case <-ctx.Done():
			return
		}
	}
}

// scan asks the driver what GPUs there are. What goes wrong is logged, and part
// of the inventory; the error is for who needs an answer now.
func (n *node) scan(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, n.nvmlTimeout)
	defer cancel()
	found, err := n.nvml.Read(bounded)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var conditions map[string]string
	if err == nil {
		n.reportIdle(found)
		conditions = n.conditions(bounded, found.GPUs)
	}
	n.forgetXids(found, err)
	usable, changed := n.inventory.update(found, conditions, err)
	changed = n.learnSizes(bounded) || changed
	for _, g := range usable {
		if g.mode != claim.ModeSlice {
			continue // nobody has to fit a context into a limit there, or it is measured before the GPU goes behind MPS
		}
		// Measured now, the cost is known when the first reservation needs it.
		go func() { _, _ = n.costs.Cost(ctx, g.costKey()) }()
	}
	if changed {
		n.wake()
	}
	return err
}

// wake has the fingerprint look at the GPUs now.
func (n *node) wake() {
	select {
	case n.changed <- struct{}{}:
	default: // it is to be woken anyway
	}
}

// costKey is what the cost of a context on this GPU depends on.
func (g *gpu) costKey() contextcost.GPU {
	return contextcost.GPU{UUID: g.UUID, Name: g.Name, DriverVersion: g.driverVersion}
}

// groupsOf is what Nomad should know.
func (n *node) groupsOf(taken *taken) []*ndevice.DeviceGroup {
	var groups []*ndevice.DeviceGroup
	for _, g := range n.inventory.list() {
		for _, group := range n.modes[g.mode].groups(&g, taken) {
			taken.setEarlier(&g, group)
			n.mps.setLeaving(&g, group)
			taken.setUnusable(group)
			groups = append(groups, group)
		}
	}
	return joined(groups)
}

// sweep releases the claims whose container is gone.
func (n *node) sweep(ctx context.Context) {
	released, err := n.ledger.Sweep(ctx)
	if ctx.Err() != nil {
		return
	}
	if n.reported.changed("sweeping the ledger", err) && err != nil {
		n.logger.Error("could not sweep the ledger", "state_dir", n.stateDir, "error", err)
	}
	for _, c := range released {
		n.logger.Info("released a claim whose container is gone", "claim", c.ID, "gpu", c.GPU.UUID, "slices", len(c.Slices))
	}
}
