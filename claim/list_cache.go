package claim

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// recent is what List gave last, and when the ledger was last changed before that.
type listCache struct {
	mu       sync.Mutex
	known    bool
	stamp    stamp
	claims   []*Claim
	problems []Problem
}

// stamp changes with each change of the ledger: records come, change and go by files that get and lose their names.
type stamp struct {
	inode   uint64
	changed time.Time
}

// stampSteps is more than the steps in which any file system counts time. A later change could bear the time of one that
// is more recent than this.
const stampSteps = 2 * time.Second

// Recent is List for those who ask often: it reads the ledger only if that was changed since. The claims are for reading
// only, since others get the same.
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
