// Package filelock locks files between processes (flock(2)). A lock ends with its holder.
package filelock

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

// Exclusive locks an open file for this process alone. It blocks while others have a lock on it. Closing the file
// unlocks it, once no child that is between fork and exec has a copy of the descriptor.
func Exclusive(file *os.File) error { return lock(file, unix.LOCK_EX) }

// Shared locks an open file against Exclusive. It blocks while another process has it exclusively.
func Shared(file *os.File) error { return lock(file, unix.LOCK_SH) }

// TryExclusive is like Exclusive, but fails with EWOULDBLOCK instead of blocking.
func TryExclusive(file *os.File) error { return lock(file, unix.LOCK_EX|unix.LOCK_NB) }

func lock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Lock is an exclusive lock on a file, which Acquire takes with a context.
//
// The kernel's wait for a file lock cannot be cancelled, so it continues in a goroutine. If no caller wants the lock by the
// time it is granted, the goroutine releases it. A Lock has one such goroutine at most: later callers take over its wait.
type Lock struct {
	path     string
	patience time.Duration
	turn     chan struct{} // holds an element while a goroutine of this process has the lock or waits for it

	mu      sync.Mutex
	waiting bool        // a goroutine is in the kernel's wait
	wanted  chan result // where its result goes; nil if nobody wants it
}

type result struct {
	file *os.File
	err  error
}

// New returns the lock on the file at path, which Acquire makes if there is none. Acquire waits for patience where its
// context has no deadline.
func New(path string, patience time.Duration) *Lock {
	return &Lock{path: path, patience: patience, turn: make(chan struct{}, 1)}
}

// Acquire takes the lock. The function that it returns releases it. The error names the process that has the lock. On a
// read-only file system the file is locked as it is.
func (l *Lock) Acquire(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return nil, l.tooLate(ctx) // the wait would continue without them, and may make the file
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, l.tooLate(ctx)
	}
	got, err := l.want()
	if err != nil {
		<-l.turn
		return nil, err
	}
	var r result
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
	return func() { release(r.file); <-l.turn }, nil
}

func (l *Lock) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, l.patience)
}

// want has the next lock delivered, and starts the wait unless one is under way.
func (l *Lock) want() (<-chan result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waiting {
		file, err := open(l.path) // here: whoever has given up makes no file any more
		if err != nil {
			return nil, err
		}
		if TryExclusive(file) == nil { // nobody has it: there is no wait that would need a goroutine
			got := make(chan result, 1)
			got <- result{file: file}
			return got, nil
		}
		l.waiting = true
		go l.wait(file)
	}
	l.wanted = make(chan result, 1)
	return l.wanted, nil
}

// unwant cancels the delivery, and returns the lock if it came just now.
func (l *Lock) unwant(got <-chan result) result {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted = nil
	select {
	case r := <-got:
		return r
	default:
		return result{}
	}
}

func (l *Lock) wait(file *os.File) {
	err := Exclusive(file)
	if err != nil {
		file.Close()
		file, err = nil, fmt.Errorf("lock %s: %w", l.path, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = false
	if l.wanted != nil {
		l.wanted <- result{file, err}
		l.wanted = nil
	} else if file != nil {
		release(file)
	}
}

func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.EROFS) { // what is there can still be seen
		return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	return f, err
}

// release unlocks before it closes: a child that is between fork and exec has a copy of the descriptor, and would keep
// the lock that long.
func release(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	f.Close()
}

func (l *Lock) tooLate(ctx context.Context) error {
	return fmt.Errorf("wait for the lock %s, which %s holds: %w", l.path, Holder(l.path), ctx.Err())
}

// Holder names the process that holds a file lock, for the person who has to find out why it does.
func Holder(path string) string {
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
