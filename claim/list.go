package claim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// List returns all claims, ordered by GPU and slices, and the files in the ledger's directory that are not records.
func (l *Ledger) List(ctx context.Context) (claims []*Claim, problems []Problem, err error) {
	err = l.read(ctx, func(snap *snapshot) error {
		for _, r := range snap.sorted() {
			claims = append(claims, r.claim())
		}
		problems = snap.problems
		return nil
	})
	return claims, problems, err
}

// listCache is the last result of List, and the stamp of the ledger at that time.
type listCache struct {
	mu       sync.Mutex
	known    bool
	stamp    stamp
	claims   []*Claim
	problems []Problem
}

// stamp changes with each change of the ledger: records are added, changed and removed by renames in its directory.
type stamp struct {
	inode   uint64
	changed time.Time
}

// stampSteps is the coarsest granularity of a file system's times. A stamp that is more recent may not change with the next
// change.
const stampSteps = 2 * time.Second

// Recent is List for frequent callers: it reads the ledger only if that has changed. Callers must not modify the claims, which
// they share.
func (l *Ledger) Recent(ctx context.Context) (claims []*Claim, problems []Problem, err error) {
	r := &l.listCache
	r.mu.Lock()
	defer r.mu.Unlock()
	now := l.now()
	stamp, err := stampOf(l.claims)
	if err != nil {
		r.known = false
		return l.List(ctx)
	}
	if r.known && stamp == r.stamp {
		return r.claims, r.problems, nil
	}
	r.known = false
	claims, problems, err = l.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	r.claims, r.problems, r.stamp = claims, problems, stamp
	r.known = now.Sub(stamp.changed) > stampSteps
	return claims, problems, nil
}

func stampOf(dir string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return stamp{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	return stamp{inode: st.Ino, changed: time.Unix(st.Mtim.Unix())}, nil
}

// WatchDir returns the directory in which a file is added, changed or removed with each change of the ledger. It creates the
// directory if it is missing. IsRecord reports which of its files are claims.
func (l *Ledger) WatchDir() (string, error) {
	if err := makeDir(l.claims); err != nil {
		return "", fmt.Errorf("making the ledger: %w", explain(l.claims, err))
	}
	return l.claims, nil
}

// IsRecord reports whether a file name in the ledger's directory is that of a claim.
func IsRecord(path string) bool {
	_, ok := idOfFile(filepath.Base(path))
	return ok
}
