package governor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// source finds the governed claims: those of the ledger, and those of `tranche run`, which are in no ledger.
type source struct {
	ledger *claim.Ledger
	runDir string
	logger hclog.Logger
	log    changelog.Log
	// skipped are the commands whose claims cannot be read.
	skipped map[string]bool
	last    []governed
}

// looks is how often is looked without a change that the kernel has told of, and again how long after one is looked again:
// a directory is made first and filled then.
var (
	looks = time.Second
	again = []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond}
)

// watch calls a function with the governed claims whenever they may have changed, until the context ends.
func (s *source) watch(ctx context.Context, found func([]governed)) {
	changes, lost, close := s.changes()
	defer close()
	s.follow(ctx, changes, lost, found)
}

// follow is watch for events of the kernel. An error means that some were lost, and counts as a change.
func (s *source) follow(ctx context.Context, changes <-chan fsnotify.Event, lost <-chan error, found func([]governed)) {
	pending := 0
	var wait time.Duration
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := false
		select {
		case <-ctx.Done():
			return
		case <-changes:
			pending, wait, changed = len(again), 0, true
		case err := <-lost:
			s.logger.Debug("changes of the ledger or the regions were lost; reading the claims now", "error", err)
			pending, wait, changed = len(again), 0, true
		case <-timer.C:
			wait = looks
			if pending > 0 {
				wait = again[len(again)-pending]
				pending--
				changed = true // a directory may have been made, or mounted over
			}
		}
		claims, err := s.read(ctx)
		if s.log.Changed("claims", err) && err != nil && ctx.Err() == nil {
			s.logger.Error("cannot read the claims; going by those that were read last", "error", err)
		}
		if err == nil && (changed || !reflect.DeepEqual(claims, s.last)) {
			s.last = claims
			found(claims)
		}
		if wait == 0 {
			wait = again[0]
		}
		timer.Reset(wait)
	}
}

// changes returns what receives a value whenever the ledger or the regions change, or changes of them were lost.
func (s *source) changes() (changes <-chan fsnotify.Event, lost <-chan error, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.logger.Warn("cannot watch the ledger, so that changes take effect a second later", "error", err)
		return nil, nil, func() {}
	}
	dirs := []string{filepath.Join(s.runDir, "claims"), filepath.Join(s.runDir, runs.Dir)}
	if dir, err := s.ledger.WatchDir(); err == nil {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = watcher.Add(dir)
		}
		if err != nil {
			s.logger.Warn("cannot watch a directory, so that changes take effect a second later", "dir", dir, "error", err)
		}
	}
	return watcher.Events, watcher.Errors, func() { watcher.Close() }
}

// read returns the governed claims.
func (s *source) read(ctx context.Context) ([]governed, error) {
	claims, _, err := s.ledger.Recent(ctx)
	if err != nil {
		return nil, err
	}
	var found []governed
	for _, c := range claims {
		if c.Governed() && c.GPU.UUID != "" {
			found = append(found, governed{Claim: *c, dir: filepath.Join(s.runDir, "claims", c.ID)})
		}
	}
	for _, dir := range runs.RegionDirs(s.runDir) {
		c, err := runs.ReadRecord(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && (!c.Governed() || c.GPU.UUID == ""):
		case err != nil: // the program may do to its own directory what it likes
			s.skip(dir, err)
		case !slices.ContainsFunc(found, func(o governed) bool { return o.ID == c.ID }):
			found = append(found, governed{Claim: *c, dir: dir})
		}
	}
	return found, nil
}

// skip logs once that a command computes without turns.
func (s *source) skip(dir string, err error) {
	if s.skipped[dir] {
		return
	}
	if s.skipped == nil {
		s.skipped = make(map[string]bool)
	}
	s.skipped[dir] = true
	s.logger.Warn("a command under tranche run computes without turns: its claim cannot be read", "dir", dir, "error", err)
}
