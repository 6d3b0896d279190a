package governor

import (
	"context"
	"encoding/json"
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
)

// source finds the governed claims: those of the ledger, and those of `tranche run`, which are in no ledger.
type source struct {
	ledger           *claim.Ledger
	runDir, stateDir string
	logger           hclog.Logger
	failed           string
	last             []governed
}

// looks is how often is looked without a change that the kernel has told of, and again how long after one is looked again:
// a directory is made first and filled then.
var (
	looks = time.Second
	again = []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond}
)

// watch calls a function with the governed claims whenever they may have changed, until the context ends.
func (s *source) watch(ctx context.Context, found func([]governed)) {
	changes, close := s.changes()
	defer close()
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
		case <-timer.C:
			wait = looks
			if pending > 0 {
				wait = again[len(again)-pending]
				pending--
				changed = true // a directory may have been made, or mounted over
			}
		}
		claims, err := s.read(ctx)
		if s.fails(err) && err != nil && ctx.Err() == nil {
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

// fails reports whether an error is another one than the last.
func (s *source) fails(err error) bool {
	text := ""
	if err != nil {
		text = err.Error()
	}
	was := s.failed
	s.failed = text
	return was != text
}

// changes receives a value whenever the ledger or the regions change.
func (s *source) changes() (<-chan fsnotify.Event, func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.logger.Warn("cannot watch the ledger, so that changes take effect a second later", "error", err)
		return nil, func() {}
	}
	dirs := []string{filepath.Join(s.runDir, "claims"), filepath.Join(s.runDir, "run")}
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
	return watcher.Events, func() { watcher.Close() }
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
	runs, err := filepath.Glob(filepath.Join(s.runDir, "run", "*", "regions", "*", "claim.json"))
	if err != nil {
		return nil, err
	}
	for _, path := range runs {
		c, err := readRun(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (!c.Governed() || c.GPU.UUID == "") {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(found, func(o governed) bool { return o.ID == c.ID }) {
			found = append(found, governed{Claim: *c, dir: filepath.Dir(path)})
		}
	}
	return found, nil
}

func readRun(path string) (*claim.Claim, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := new(claim.Claim)
	return c, json.Unmarshal(text, c)
}
