package device

import (
	"context"
	"fmt"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
)

// ledgerSettles is how long changes of the ledger are collected. Each message to Nomad registers the node again, and
// containers are often started many at a time.
const ledgerSettles = 200 * time.Millisecond

// watchLedger returns a channel that receives a value after changes of the ledger, until the context ends. Where the
// ledger cannot be watched, changes are noticed once a fingerprint period.
func watchLedger(ctx context.Context, ledger *share.Ledger, logger hclog.Logger) <-chan struct{} {
	changes := make(chan struct{}, 1)
	watcher, err := newWatcher(ledger)
	if err != nil {
		logger.Warn("cannot watch the ledger, so that its changes are noticed once a fingerprint_period only", "error", err)
		return changes
	}
	go func() {
		defer watcher.Close()
		collectChanges(ctx, watcher.Events, watcher.Errors, changes)
	}()
	return changes
}

func newWatcher(ledger *share.Ledger) (*fsnotify.Watcher, error) {
	dir, err := ledger.WatchDir()
	if err != nil {
		return nil, err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	if err := watcher.Add(dir); err != nil {
		watcher.Close()
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	return watcher, nil
}

// collectChanges sends one value for all changes within ledgerSettles. An error means that events were lost, and counts as
// a change.
func collectChanges(ctx context.Context, events <-chan fsnotify.Event, lost <-chan error, changes chan<- struct{}) {
	settled := time.NewTimer(ledgerSettles)
	settled.Stop()
	defer settled.Stop()
	pending := false
	for {
		select {
		case event, ok := <-events:
			if !ok {
				return
			}
			if !claim.IsRecord(event.Name) {
				continue
			}
		case _, ok := <-lost:
			if !ok {
				return
			}
		case <-settled.C:
			pending = false
			select {
			case changes <- struct{}{}:
			default: // a value is waiting already
			}
			continue
		case <-ctx.Done():
			return
		}
		if !pending {
			pending = true
			settled.Reset(ledgerSettles)
		}
	}
}
