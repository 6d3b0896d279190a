package driver

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// startsPerCPU is how many containers are made at once for each of the node's CPUs: a start waits for the disk, too.
	startsPerCPU = 2
	// turnLimit is how long a start counts as one of them. Whatever holds one up longer (a hook, a file system) must not
	// hold up the others.
	turnLimit = 5 * time.Second
)

// turns lets only so many containers be made at once, in the order in which they were asked for. Making one is work for
// the CPUs: when fifty are made side by side, all of them are ready at the end, and one after another, half of them are
// in half of the time and none is later.
type turns struct {
	free  *semaphore.Weighted
	limit time.Duration
}

func newTurns(atOnce int64, limit time.Duration) *turns {
	return &turns{free: semaphore.NewWeighted(atOnce), limit: limit}
}

// defaultTurns are those of this node.
func defaultTurns() *turns { return newTurns(int64(startsPerCPU*runtime.NumCPU()), turnLimit) }

// take waits for a turn, and returns how to end it.
func (t *turns) take(ctx context.Context) (end func(), err error) {
	if err := t.free.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	// Whoever stops the timer, or is the timer, gives the turn back: once.
	timer := time.AfterFunc(t.limit, func() { t.free.Release(1) })
	return func() {
		if timer.Stop() {
			t.free.Release(1)
		}
	}, nil
}
