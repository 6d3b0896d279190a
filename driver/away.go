package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	nstructs "github.com/hashicorp/nomad/nomad/structs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// How long containerd may be away before a call gives it up.
const (
	// startPatience is that of a start, which has no other way: longer than a restart or an upgrade takes.
	startPatience = time.Minute
	// shortPatience is that of what can be done in another way, or later.
	shortPatience = 2 * time.Second
)

// errAway ends calls in whose midst containerd was away for too long.
var errAway = errors.New("containerd is away")

// untilAway returns a context that ends with errAway when containerd has been away for patience at a stretch. Calls wait
// for a containerd that is away; this is what says that it is enough.
func (d *Driver) untilAway(parent context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if conn, ok := d.client.Conn().(*grpc.ClientConn); ok {
		d.spawn(func() { watchAway(ctx, conn, patience, cancel) })
	}
	return ctx, func() { cancel(nil) }
}

func watchAway(ctx context.Context, conn *grpc.ClientConn, patience time.Duration, cancel context.CancelCauseFunc) {
	for lastThere := time.Now(); ctx.Err() == nil; {
		state := conn.GetState()
		// A connection is idle as long as nobody calls, and no call then waits in vain.
		if state == connectivity.Ready || state == connectivity.Idle {
			conn.WaitForStateChange(ctx, state)
			lastThere = time.Now()
			continue
		}
		limited, done := context.WithDeadline(ctx, lastThere.Add(patience))
		changed := conn.WaitForStateChange(limited, state)
		done()
		if !changed && ctx.Err() == nil {
			cancel(errAway)
		}
	}
}

// shortCall is like call, but gives containerd up soon.
func (d *Driver) shortCall() (context.Context, context.CancelFunc) {
	ctx, cancel := d.call()
	ctx, stop := d.untilAway(ctx, shortPatience)
	return ctx, func() { stop(); cancel() }
}

// explainAway makes errAway of the error of a call that untilAway ended.
func explainAway(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errAway) {
		return errAway
	}
	return err
}

// isAway says whether a call failed because containerd could not be reached, up to the call's deadline.
func isAway(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errAway)
}

// awayError is an error of away, which says what to check.
type awayError struct{ error }

func (e awayError) Unwrap() error { return e.error }

// away marks an error as worth another try if containerd could not be reached.
func (d *Driver) away(err error) error {
	if isAway(err) {
		return nstructs.NewRecoverableError(awayError{fmt.Errorf("%w; containerd at %s went away, check that it runs",
			err, d.config.ContainerdAddress)}, true)
	}
	return err
}

// because adds to the error of a start what its context or the kernel know better than who returned it.
func (d *Driver) because(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errAway) && errors.As(err, new(awayError)):
		return nstructs.NewRecoverableError(err, true)
	case errors.Is(cause, errAway):
		return nstructs.NewRecoverableError(fmt.Errorf("%w; containerd at %s has not answered for %s, check that it runs",
			err, d.config.ContainerdAddress, d.startPatience), true)
	case errors.Is(cause, errSuperseded):
		return fmt.Errorf("%w: %w", cause, err)
	case isFull(err):
		return nstructs.NewRecoverableError(fmt.Errorf("%w; a disk of this node is full: make room on the file systems of "+
			"containerd's root and state directories (mostly /var/lib/containerd and /run/containerd) and of Nomad's "+
			"data directory", err), true)
	}
	return err
}

// isFull says whether a file system was full. containerd and the runtime report in text only.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error())
}
