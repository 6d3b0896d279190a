package driver

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// starts are the starts of tasks in progress, at most one for each task of an allocation. The zero value is ready.
type starts struct {
	mu      sync.Mutex
	running map[string]*oneStart
}

type oneStart struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// errSuperseded ends a start in whose midst another of the same task begins.
var errSuperseded = errors.New("the task was started again meanwhile")

// startKey names a task of an allocation, however often it was restarted.
func startKey(allocID, task string) string { return allocID + "/" + task }

// begin blocks until no other start of the task is in progress. It returns a context for the start, and a function that ends
// it.
//
// Nomad starts a task again while an earlier start is still on its way when its agent was killed meanwhile. The new agent
// knows nothing of the earlier start, so that one is ended rather than waited for: it may be a pull of an hour.
func (s *starts) begin(ctx context.Context, key string) (context.Context, func(), error) {
	for {
		started, end, older := s.tryBegin(ctx, key)
		if older == nil {
			return started, end, nil
		}
		older.cancel(errSuperseded)
		select {
		case <-older.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// hold keeps the task from being started until release is called. A start that waits for that ends the context that it
// returns. ok is false if the task is being started.
func (s *starts) hold(ctx context.Context, allocID, task string) (held context.Context, release func(), ok bool) {
	held, release, older := s.tryBegin(ctx, startKey(allocID, task))
	return held, release, older == nil
}

// tryBegin begins a start, or returns the one that is in progress.
func (s *starts) tryBegin(ctx context.Context, key string) (context.Context, func(), *oneStart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if older := s.running[key]; older != nil {
		return nil, nil, older
	}
	ctx, cancel := context.WithCancelCause(ctx)
	mine := &oneStart{cancel: cancel, done: make(chan struct{})}
	if s.running == nil {
		s.running = map[string]*oneStart{}
	}
	s.running[key] = mine
	return ctx, func() {
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, key)
		close(mine.done)
	}, nil
}

const (
	// creationsPerCPU is how many containers are created at the same time for each of the node's CPUs. Creating a
	// container mostly needs CPU: when fifty are created side by side, all are ready at the end; a few at a time, half of
	// them are ready in half of the time and none is later. It is more than 1 since creation also waits for the disk.
	creationsPerCPU = 2
	// creationLimit is how long a creation holds the semaphore. One that hangs, in a hook or a file system, must not
	// block the others.
	creationLimit = 5 * time.Second
)

// acquireFor acquires the semaphore, which release or the end of limit releases, whichever comes first.
func acquireFor(ctx context.Context, s *semaphore.Weighted, limit time.Duration) (release func(), err error) {
	if err := s.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	once := sync.OnceFunc(func() { s.Release(1) })
	timer := time.AfterFunc(limit, once)
	return func() { timer.Stop(); once() }, nil
}
