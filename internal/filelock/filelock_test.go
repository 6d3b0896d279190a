package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// Two Locks on one file are as two processes: flock(2) is by open file description.
func TestLock_Excludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var held atomic.Int32 // the race detector does not know of file locks
	var all sync.WaitGroup
	for range 4 {
		l := New(path, time.Minute)
		for range 8 {
			all.Go(func() {
				unlock, err := l.Acquire(t.Context())
				must.NoError(t, err)
				must.Eq(t, 1, held.Add(1))
				held.Add(-1)
				unlock()
			})
		}
	}
	all.Wait()
}

// Whoever gives up leaves a wait behind. The next takes it over, and if nobody does, the lock is released.
func TestLock_GivenUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	holder, waiter := New(path, time.Minute), New(path, time.Minute)
	unlock, err := holder.Acquire(t.Context())
	must.NoError(t, err)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err = waiter.Acquire(ctx)
		cancel()
		must.ErrorIs(t, err, context.DeadlineExceeded)
		must.ErrorContains(t, err, path)
	}
	unlock()
	for waiting := true; waiting; runtime.Gosched() {
		waiter.mu.Lock()
		waiting = waiter.waiting
		waiter.mu.Unlock()
	}
	file, err := os.Open(path)
	must.NoError(t, err)
	must.NoError(t, TryExclusive(file), must.Sprint("the wait that was left behind kept the lock"))
	must.NoError(t, file.Close())
	unlock, err = waiter.Acquire(t.Context())
	must.NoError(t, err)
	unlock()
}

// Whoever has given up beforehand begins nothing that continues without them.
func TestLock_GivenUpBefore(t *testing.T) {
	l := New(filepath.Join(t.TempDir(), "lock"), time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 {
		_, err := l.Acquire(ctx)
		must.ErrorIs(t, err, context.Canceled)
	}
	must.False(t, l.waiting)
	_, err := os.Lstat(l.path)
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestLock_NamesHolder(t *testing.T) {
	l := New(filepath.Join(t.TempDir(), "lock"), time.Minute)
	unlock, err := l.Acquire(t.Context())
	must.NoError(t, err)
	defer unlock()
	// The kernel lists locks page by page, and may skip one while others come and go.
	named := false
	for tries := 0; tries < 10 && !named; tries++ {
		named = Holder(l.path) == fmt.Sprintf("process %d (filelock.test)", os.Getpid())
	}
	must.True(t, named)
}

func TestLock_Patience(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := New(path, time.Minute).Acquire(t.Context())
	must.NoError(t, err)
	defer unlock()
	_, err = New(path, 5*time.Millisecond).Acquire(t.Context())
	must.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTryExclusive(t *testing.T) {
	dir := t.TempDir()
	open := func() *os.File {
		file, err := os.Open(dir)
		must.NoError(t, err)
		t.Cleanup(func() { file.Close() })
		return file
	}
	one, other, third := open(), open(), open()
	must.NoError(t, Shared(one))
	must.NoError(t, Shared(other))
	must.True(t, errors.Is(TryExclusive(third), unix.EWOULDBLOCK))
	must.NoError(t, one.Close())
	must.NoError(t, other.Close())
	must.NoError(t, TryExclusive(third))
}
