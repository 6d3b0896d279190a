// Package governor is `tranche governor`: it gives governed claims turns on their GPUs, and has the GPU driver hold containers to
// their limits. Which claim has the next turn is decided by package turns; this package connects that with the processes, by a
// socket in each claim's directory and a page for each process. It never starts, signals or ends a process, and a process without
// a governor computes as it likes.
package governor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/enforcement"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/filelock"
)

// Options are what a governor needs to know.
type Options struct {
	// StateDir and RunDir are the ledger's.
	StateDir, RunDir string
	Logger           hclog.Logger
	// Ready is called once the governor governs; nil for nothing.
	Ready func()
	// Processes lists the processes on a GPU, by its UUID, so that those can be named that have not joined; nil if that is
	// not possible.
	Processes func(ctx context.Context, gpuUUID string) (pids []int, err error)
	// Utilization returns the part of a GPU's time, 0 to 1, that each process had lately, by process ID; nil where the driver
	// does not report that. It is needed if Processes is there.
	Utilization func(ctx context.Context, gpuUUID string, since time.Time) (map[int]float64, error)
	// Limits is the driver that enforces limits of memory; nil if there is none.
	Limits enforcement.Driver
	// Displace ends another governor that runs on the node, if this one is to take its place. It is called repeatedly while there
	// is one. Nil for a governor that gives up then.
	Displace func(ctx context.Context) error
}

// ErrRuns is returned by Run if another governor runs on the node.
var ErrRuns = errors.New("another governor runs on this node")

// Run governs until the context ends.
func Run(ctx context.Context, o Options) error {
	if err := status.MakeDir(o.RunDir); err != nil {
		return err
	}
	lock, err := takeLock(ctx, filepath.Join(o.RunDir, status.Dir, status.LockFile), o.Displace)
	if err != nil {
		return err
	}
	defer lock.Close()
	ledger, err := claim.Open(claim.Options{StateDir: o.StateDir, RunDir: o.RunDir})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := newLoop()
	if err != nil {
		return err
	}
	defer l.close()
	n := newNode(l, o)
	n.restore()
	source := &source{ledger: ledger, runDir: o.RunDir, logger: o.Logger}
	observer := &observer{
		options: o, changed: func() { l.post(func() { n.publishDue = 0 }) },
		charge: func(uuid string, parts map[string]float64) { l.post(func() { n.chargeOutside(uuid, parts) }) },
	}
	publisher := newPublisher(o, observer)
	enforcer := &enforcer{driver: o.Limits, ledger: ledger, runDir: o.RunDir, logger: o.Logger}
	done := make(chan struct{}, 4)
	for _, part := range []func(){
		func() { source.watch(ctx, func(claims []governed) { l.post(func() { n.update(claims) }) }) },
		func() { publisher.run(ctx) },
		func() { observer.run(ctx) },
		func() { enforcer.run(ctx) },
	} {
		go func() { defer func() { done <- struct{}{} }(); part() }()
	}
	n.publish = publisher.publish
	if o.Ready != nil {
		o.Ready()
	}
	err = l.run(ctx, n)
	cancel()
	for range cap(done) {
		<-done
	}
	n.leave()
	return err
}

// lockPatience is how long a governor waits for another that ends.
const lockPatience = 2 * time.Second

// takeLock locks a file for this process, whose ID it writes into the file: for people, and for whoever has to end a governor that
// hangs.
func takeLock(ctx context.Context, path string, displace func(context.Context) error) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the governor's directory: %w", err)
	}
	err = lock.Chmod(0o600) // earlier versions have let everybody open it
	if err == nil {
		err = untilLocked(ctx, lock, displace)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: %s has the lock", ErrRuns, filelock.Holder(path))
	}
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(lock, os.Getpid())
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return lock, nil
}

func untilLocked(ctx context.Context, lock *os.File, displace func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := filelock.TryExclusive(lock)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if displace != nil {
			if displaceErr := displace(ctx); displaceErr != nil && ctx.Err() == nil {
				return errors.Join(err, displaceErr)
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// monotonic returns the time by CLOCK_MONOTONIC, which the pages and the messages have.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}
