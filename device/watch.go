package device

import (
	"context"
	"fmt"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/tranche-gpu/tranche/claim"
)

// ledgerSettles is how long changes of the ledger are gathered. Each message to
// Nomad registers the node anew, and containers come in crowds.
const ledgerSettles = 200 * time.Millisecond

// watchLedger tells of changes of the ledger, until the context ends. Where it
// can't be watched, changes are seen once a period.
func (n *node) watchLedger(ctx context.Context) <-chan struct{} {
	told := make(chan struct{}, 1)
	watcher, err := n.newWatcher()
	if n.reported.changed("watching the ledger", err) && err != nil {
		n.logger.Warn("cannot watch the ledger, so what others take shows once a period only",
			"state_dir", n.stateDir, "period", n.fingerprintPeriod.String(), "error", err)
	}
	if err != nil {
		return told
	}
	go func() {
		defer watcher.Close()
		gather(ctx, watcher.Events, watcher.Errors, told)
	}()
	return told
}

func (n *node) newWatcher() (*fsnotify.Watcher, error) {
	dir, err := n.ledger.WatchDir()
	if err != nil {
		return nil, err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	if err := watcher.Add(dir); err != nil {
		watcher.Close()
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	return watcher, nil
}

// gather tells once of all changes within a while. Events that were lost are
// changes like others.
func gather(ctx context.Context, events <-chan fsnotify.Event, lost <-chan error, told chan<- struct{}) {
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
			case told <- struct{}{}:
			default: // it is to be told anyway
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
