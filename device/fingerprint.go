package device

import (
	"context"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/size"
)

// fingerprint sends the devices of this node until the context ends: at once, even if there are none, because the agent
// waits for the first message before it accepts work; and then only when something has changed, because each message
// makes Nomad register the node again.
func (n *node) fingerprint(ctx context.Context, out chan<- *ndevice.FingerprintResponse) {
	defer close(out)
	n.logger.Info("looking for GPUs", "driver_root", n.driverRoot, "period", n.fingerprintPeriod.String(),
		"mode", string(n.sharing.others.Mode), "slice_memory", size.Format(n.sharing.others.SliceBytes),
		"gpu_blocks", len(n.sharing.blocks), "ignored_gpu_ids", n.ignoredUUIDs())
	ticker := time.NewTicker(n.fingerprintPeriod)
	defer ticker.Stop()
	ledger := watchLedger(ctx, n.ledger, n.logger)
	events := make(chan struct{})
	go func() { defer close(events); n.health.watch(ctx) }()
	defer func() { <-events }()
	looked := make(chan struct{})
	go func() { defer close(looked); n.owners.Watch(ctx) }()
	defer func() { <-looked }()
	defer n.daemons.Close()
	defer n.governed.wait()

	publisher := &publisher{groups: n.groups, clock: n.clock}
	for scan := true; ; {
		if scan {
			n.update(ctx)
		}
		n.onDemand.Reconcile(ctx, n.inventory.list())
		occupancy := n.external.occupancy(ctx)
		n.unmanaged.block(occupancy)
		if groups, ok := publisher.pending(occupancy); ok {
			select {
			case out <- ndevice.NewFingerprint(groups...):
				publisher.published(groups, occupancy.Deferrable)
			case <-ctx.Done():
				return
			}
		}
		scan = true
		select {
		case <-ticker.C:
		case <-n.changed:
		case <-n.unmanaged.due:
			n.unmanaged.due = nil
		case <-ledger:
			scan = false // it concerns no GPU but those with on-demand MIG instances
		case <-n.daemons.Changed():
			scan = false
		case <-publisher.due:
			scan, publisher.due = false, nil
		case <-ctx.Done():
			return
		}
	}
}

// update queries the driver, changes the GPUs as they are configured, and publishes their state to others on this node.
func (n *node) update(ctx context.Context) {
	n.ledger.ReleaseEnded(ctx)
	_ = n.scanner.scan(ctx)
	n.published.publishLayout(n.inventory.list())
	n.governed.keep(ctx, n.inventory.list())
	n.daemons.Reconcile(ctx, n.inventory.list())
	// MIG is turned on in the first round, and instances are created in the second.
	for range 2 {
		if !n.layout.Apply(ctx, n.inventory.list(), n.inventory.setWaits) {
			break
		}
		_ = n.scanner.scan(ctx)
	}
	n.health.checkEvents()
	n.unmanaged.update(ctx, n.published.readHealth())
	n.published.publishHealth(n.inventory.list(), n.unmanaged.uncounted.lasting())
}

// groups returns the device groups of this node.
func (n *node) groups(o *share.Occupancy) []*ndevice.DeviceGroup {
	var groups []*ndevice.DeviceGroup
	for _, g := range n.inventory.list() {
		for _, group := range n.modes[g.Mode].Groups(&g, o) {
			o.MarkEarlier(&g, group)
			n.daemons.MarkLeaving(&g, group)
			o.MarkUnusable(group)
			n.governed.mark(&g, group)
			groups = append(groups, group)
		}
	}
	return share.Join(groups)
}
