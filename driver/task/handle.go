// Package task is one running or ended task: the wait for its end, signals, commands executed in it, its output and its
// statistics. It must neither start tasks nor remove containers.
package task

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// Handle is one task that runs, or has run. Make one with New.
type Handle struct {
	Config *drivers.TaskConfig
	State  State

	plugin *Plugin
	// ended is closed once the exit result is known.
	ended chan struct{}
	// failed is closed by noteFailure: containerd does not answer, or did not at some time, so the shim is waited for too.
	failed      chan struct{}
	noteFailure func()
	// bypassed is set once a signal had to be sent past containerd and a shim that hangs; the next ones are, too.
	bypassed atomic.Bool

	mu          sync.Mutex
	result      *drivers.ExitResult // nil until ended
	completedAt time.Time
	// lastOOM is when the kernel was last seen to end a process of the task for lack of memory; stopped is when somebody first
	// had the task ended. Both are zero where that has not happened.
	lastOOM, stopped time.Time
	// lastQuery is when Nomad last queried the task; waiting is how many of its calls wait for the end now.
	lastQuery time.Time
	waiting   int
}

// New returns the handle of a task that has been started. Its end is known only if AwaitExit runs.
func New(plugin *Plugin, cfg *drivers.TaskConfig, state State) *Handle {
	failed := make(chan struct{})
	return &Handle{Config: cfg, State: state, plugin: plugin, ended: make(chan struct{}), lastQuery: time.Now(),
		failed: failed, noteFailure: sync.OnceFunc(func() { close(failed) })}
}

// NomadHandle returns what Nomad keeps of the task.
func (h *Handle) NomadHandle() (*drivers.TaskHandle, error) {
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config = h.Config
	handle.State = drivers.TaskStateRunning
	if err := handle.SetDriverState(&h.State); err != nil {
		return nil, fmt.Errorf("write down the task's state for Nomad: %w", err)
	}
	return handle, nil
}

// Load returns the task in containerd.
func (h *Handle) Load(ctx context.Context) (containerd.Task, error) {
	container, err := h.plugin.Client.LoadContainer(ctx, h.State.ContainerID)
	if err != nil {
		return nil, err
	}
	return container.Task(ctx, nil)
}

// Exit returns the task's exit result; nil while it runs.
func (h *Handle) Exit() *drivers.ExitResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.result.Copy()
}

// Wait returns a channel on which the task's exit result is sent, or one that says why there is none: Nomad takes what it
// reads from a closed channel for a result.
func (h *Handle) Wait(ctx context.Context) <-chan *drivers.ExitResult {
	queried := h.NoteQuery()
	results := make(chan *drivers.ExitResult, 1)
	go func() {
		defer close(results)
		defer queried()
		select {
		case <-h.ended:
			results <- h.Exit()
		case <-ctx.Done():
			results <- &drivers.ExitResult{Err: ctx.Err()}
		}
	}()
	return results
}

// Status returns what is known of the task.
func (h *Handle) Status() *drivers.TaskStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	status := &drivers.TaskStatus{
		ID:          h.Config.ID,
		Name:        h.Config.Name,
		State:       drivers.TaskStateRunning,
		StartedAt:   h.State.StartedAt,
		CompletedAt: h.completedAt,
		ExitResult:  h.result.Copy(),
		DriverAttributes: map[string]string{
			"container_id": h.State.ContainerID,
			"pid":          fmt.Sprint(h.State.PID),
		},
	}
	if h.result != nil {
		status.State = drivers.TaskStateExited
	}
	return status
}

// NoteQuery notes that Nomad queries the task, until the function that it returns is called.
func (h *Handle) NoteQuery() (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastQuery = time.Now()
	h.waiting++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.waiting--
	}
}

// NotQueriedSince reports whether Nomad has not queried the task since a moment.
func (h *Handle) NotQueriedSince(since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting == 0 && h.lastQuery.Before(since)
}

func (h *Handle) finish(result *drivers.ExitResult, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.result, h.completedAt = result, at
	close(h.ended)
}

// noteStop notes that somebody has the task ended now.
func (h *Handle) noteStop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped.IsZero() {
		h.stopped = time.Now()
	}
}

func (h *Handle) markOOM() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastOOM = time.Now()
}

// oomCausedEnd reports whether lack of memory is why the task ended, and not only why it once lost a process. A stop has
// another cause, unless the kernel ended a process after it began. A process that goes on without the one that it lost ends of
// something else; where no event came, that is not known.
func (h *Handle) oomCausedEnd(notice exitNotice) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	signal := notice.code - firstSignalStatus
	switch {
	case notice.code == 0 || signal > 0 && signal <= maxSignal && signal != uint32(unix.SIGKILL):
		return false
	case !h.stopped.IsZero():
		return h.lastOOM.After(h.stopped)
	case notice.code != killedStatus && !h.lastOOM.IsZero():
		return notice.at.Sub(h.lastOOM) < oomAftermath
	}
	return notice.oomKills > 0 || !h.lastOOM.IsZero()
}
