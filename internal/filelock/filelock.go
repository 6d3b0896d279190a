package claim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const lockName = ".lock"

// lockPatience is how long a call waits for the ledger when its context sets no deadline. A change takes milliseconds;
// whoever holds the lock for this long is stopped.
const lockPatience = 30 * time.Second

// fileLock is an exclusive lock between processes that can be waited for with a context.
//
// The kernel's wait for a file lock cannot be called off, so it goes on in a goroutine; when nobody wants the lock any
// more by the time it comes, the goroutine gives it back. There is never more than one such goroutine per fileLock:
// those who come later take over its wait.
type fileLock struct {
	path string
	turn chan struct{} // one goroutine of this process at a time

	mu      sync.Mutex
	waiting bool            // a goroutine is in the kernel's wait
	wanted  chan lockResult // where its result goes; nil if nobody wants it
}

type lockResult struct {
	file *os.File
	err  error
}

func newFileLock(path string) *fileLock { return &fileLock{path: path, turn: make(chan struct{}, 1)} }

// acquire takes the lock. The function that it returns gives it back.
func (l *fileLock) acquire(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := withPatience(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return nil, l.tooLate(ctx) // the wait would go on without them, and may make the file
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, l.tooLate(ctx)
	}
	got := l.want()
	var r lockResult
	select {
	case r = <-got:
	case <-ctx.Done():
		r = l.unwant(got)
		if r.file == nil && r.err == nil {
			r.err = l.tooLate(ctx)
		}
	}
	if r.err != nil {
		<-l.turn
		return nil, r.err
	}
	return func() { giveBack(r.file); <-l.turn }, nil
}

func withPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, lockPatience)
}

// want asks for the next lock to be delivered, and starts the wait unless one is under way.
func (l *fileLock) want() <-chan lockResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = make(chan lockResult, 1)
	if !l.waiting {
		l.waiting = true
		go l.wait()
	}
	return l.wanted
}

// unwant calls the delivery off, and returns the lock if it came just now.
func (l *fileLock) unwant(got <-chan lockResult) lockResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = nil
	select {
	case r := <-got:
		return r
	default:
		return lockResult{}
	}
}

func (l *fileLock) wait() {
	file, err := takeLock(l.path)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = false
	if l.wanted != nil {
		l.wanted <- lockResult{file, err}
		l.wanted = nil
	} else if file != nil {
		giveBack(file)
	}
}

func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.EROFS) { // what is there can still be seen
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
	}
}

// giveBack unlocks before it closes: a child that is between fork and exec has a copy of the descriptor, and would keep
// the lock that long.
func giveBack(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	f.Close()
}

func (l *fileLock) tooLate(ctx context.Context) error {
	return fmt.Errorf("waiting for the lock %s, which %s holds: %w", l.path, lockHolder(l.path), ctx.Err())
}

// lockHolder names the process that holds a file lock, for the person who has to find out why it does.
func lockHolder(path string) string {
	const unknown = "another process"
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return unknown
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return unknown
	}
	defer locks.Close()
	table, err := io.ReadAll(locks)
	if err != nil {
		return unknown
	}
	// 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF
	place := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && f[5] == place {
			name, _ := os.ReadFile("/proc/" + f[4] + "/comm")
			return fmt.Sprintf("process %s (%s)", f[4], strings.TrimSpace(string(name)))
		}
	}
	return unknown
}
