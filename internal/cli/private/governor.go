package private

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/governor/protocol"
)

// AwaitGovernor blocks until the governor has made its socket for the claim, or the context ends.
func (p *Dir) AwaitGovernor(ctx context.Context, id string) error {
	dir := filepath.Join(p.path, runs.Regions, id)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return err
	}
	for {
		if _, err := os.Lstat(filepath.Join(dir, protocol.Socket)); err == nil {
			return nil
		}
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) { // it may have been made
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
