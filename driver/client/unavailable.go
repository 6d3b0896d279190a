package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tranche-gpu/tranche/driver/recoverable"
)

// shortPatience is how long containerd may be unavailable before ShortCall gives up.
const shortPatience = 2 * time.Second

// ErrUnavailable ends calls during which containerd was unavailable for too long.
var ErrUnavailable = errors.New("containerd is unavailable")

// UntilUnavailable returns a context that ends with ErrUnavailable when containerd has been unavailable for patience at a
// stretch. Calls wait for an unavailable containerd; this bounds how long.
func (c *Client) UntilUnavailable(parent context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if conn, ok := c.Conn().(*grpc.ClientConn); ok {
		c.Go(func() { watchConnection(ctx, conn, patience, cancel) })
	}
	return ctx, func() { cancel(nil) }
}

func watchConnection(ctx context.Context, conn *grpc.ClientConn, patience time.Duration, cancel context.CancelCauseFunc) {
	for lastReady := time.Now(); ctx.Err() == nil; {
		state := conn.GetState()
		// A connection is idle as long as there are no calls, and then no call waits for it.
		if state == connectivity.Ready || state == connectivity.Idle {
			conn.WaitForStateChange(ctx, state)
			lastReady = time.Now()
			continue
		}
		limited, done := context.WithDeadline(ctx, lastReady.Add(patience))
		changed := conn.WaitForStateChange(limited, state)
		done()
		if !changed && ctx.Err() == nil {
			cancel(ErrUnavailable)
		}
	}
}

// ShortCall is like Call, but gives up soon if containerd is unavailable. It is for what can be done in another way, or
// later.
func (c *Client) ShortCall() (context.Context, context.CancelFunc) {
	ctx, cancel := c.Call()
	ctx, stop := c.UntilUnavailable(ctx, shortPatience)
	return ctx, func() { stop(); cancel() }
}

// Cause returns ErrUnavailable in place of the error of a call that UntilUnavailable ended, and err otherwise.
func Cause(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrUnavailable) {
		return ErrUnavailable
	}
	return err
}

// IsUnavailable reports whether a call failed because containerd could not be reached, up to the call's deadline.
func IsUnavailable(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable)
}

// UnavailableError is the error of a call that failed because containerd could not be reached. It says what to check.
type UnavailableError struct{ error }

// Unwrap returns the error of the call.
func (e UnavailableError) Unwrap() error { return e.error }

// Recoverable marks an error as worth another try if containerd could not be reached.
func (c *Client) Recoverable(err error) error {
	if IsUnavailable(err) {
		return recoverable.Error(UnavailableError{fmt.Errorf("%w; containerd at %s is unavailable, check that it runs",
			err, c.Address)})
	}
	return err
}

// IsDiskFull reports whether a file system was full. containerd and the runtime report that in text only.
func IsDiskFull(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), unix.ENOSPC.Error()))
}
