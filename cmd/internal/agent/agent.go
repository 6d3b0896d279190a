// Package agent ends the process of a plugin when its Nomad agent is gone and none comes back for it.
//
// An agent ends its plugins when it stops, but not when it is killed, or fails as it starts. A device plugin is of no use to
// the next agent, which attaches to it only to end it. A task driver serves on: the next agent finds its address in its state
// and attaches to it, and starts another one where that fails. One that was never configured is in no agent's state.
package agent

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/stats"
)

// ReattachWithin is how long a task driver waits for the next agent. One that comes later starts another one, which takes the
// tasks over.
const ReattachWithin = 2 * time.Minute

// Watch knows whether the plugin's agent lives and who is connected. It is a handler for the plugin's gRPC server; without one
// nobody counts as connected.
type Watch struct {
	parent parent

	mu         sync.Mutex
	connected  int
	configured bool
	// changed is closed when somebody has come or gone; nil if nobody waits for that.
	changed chan struct{}
}

var _ stats.Handler = (*Watch)(nil)

// NewWatch begins to watch the process that has started this one. Call it before the plugin listens: an agent that ends right
// after that would be taken for the process that adopts its orphans.
func NewWatch() *Watch { return &Watch{parent: findParent()} }

// Gone blocks until the process that started this one has ended, and then until nobody has been connected for a while: for
// patience where the plugin was configured, which is when an agent writes down its address. It never returns where the parent
// cannot be watched.
func (w *Watch) Gone(patience time.Duration) {
	if !w.parent.wait() {
		select {}
	}
	for {
		w.mu.Lock()
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed, connected, wait := w.changed, w.connected, patience
		if !w.configured {
			wait = 0
		}
		w.mu.Unlock()
		if connected > 0 {
			<-changed
			continue
		}
		select {
		case <-changed:
		case <-time.After(wait):
			return
		}
	}
}

// parent is the process that has started this one.
type parent struct {
	pidfd int // -1 if it has ended or cannot be watched
	ended bool
}

// findParent finds the parent. An agent that ended before this process came so far reads its output no more.
func findParent() parent {
	pid := os.Getppid()
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return parent{pidfd: -1, ended: true}
	case err != nil:
		return parent{pidfd: -1}
	}
	adopted := os.Getppid() != pid // the number may be another's by now
	return parent{pidfd: fd, ended: adopted || unread(unix.Stdout)}
}

// unread reports whether a descriptor is of a pipe that nobody can read from.
func unread(descriptor int) bool {
	out := []unix.PollFd{{Fd: int32(descriptor)}}
	n, err := unix.Poll(out, 0)
	return err == nil && n == 1 && out[0].Revents&unix.POLLERR != 0
}

// wait blocks until the parent has ended. It is false if that cannot be seen.
func (p parent) wait() bool {
	for !p.ended && p.pidfd >= 0 {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, -1)
		p.ended = n == 1
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
	return p.ended
}

// HandleConn implements stats.Handler.
func (w *Watch) HandleConn(_ context.Context, what stats.ConnStats) {
	switch what.(type) {
	case *stats.ConnBegin:
		w.change(func() { w.connected++ })
	case *stats.ConnEnd:
		w.change(func() { w.connected-- })
	}
}

// TagRPC implements stats.Handler.
func (w *Watch) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if strings.HasSuffix(info.FullMethodName, "/SetConfig") {
		w.change(func() { w.configured = true })
	}
	return ctx
}

// TagConn implements stats.Handler.
func (w *Watch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (w *Watch) HandleRPC(context.Context, stats.RPCStats) {}

func (w *Watch) change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}
