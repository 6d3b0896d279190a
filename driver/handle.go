package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/size"
)

// firstSignalStatus is what a shell, and containerd, adds to the number of the signal that ended a process.
const firstSignalStatus = 128

// taskHandle is one task that runs, or has run.
type taskHandle struct {
	driver *Driver
	cfg    *drivers.TaskConfig
	state  taskState
	// ended is closed once the exit result is known.
	ended chan struct{}

	// unseen is set if containerd was unavailable when the task was recovered.
	unseen bool

	mu          sync.Mutex
	result      *drivers.ExitResult // nil until ended
	completedAt time.Time
	oomKilled   bool
	// lastQuery is when Nomad last queried the task; waiting is how many of its calls wait for the end now.
	lastQuery time.Time
	waiting   int
}

func newTaskHandle(d *Driver, cfg *drivers.TaskConfig, state taskState) *taskHandle {
	return &taskHandle{driver: d, cfg: cfg, state: state, ended: make(chan struct{}), lastQuery: time.Now()}
}

// nomadHandle is what Nomad keeps of the task.
func (h *taskHandle) nomadHandle() (*drivers.TaskHandle, error) {
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config = h.cfg
	handle.State = drivers.TaskStateRunning
	if err := handle.SetDriverState(&h.state); err != nil {
		return nil, fmt.Errorf("write down the task's state for Nomad: %w", err)
	}
	return handle, nil
}

// adopt takes the task into the store and starts to wait for its end.
func (d *Driver) adopt(h *taskHandle) {
	d.tasks.put(h)
	d.client.Go(func() { h.awaitExit(d.client.Context()) })
	d.health.Add(h.cfg)
}

// load returns the task in containerd.
func (h *taskHandle) load(ctx context.Context) (containerd.Task, error) {
	container, err := h.driver.client.LoadContainer(ctx, h.state.ContainerID)
	if err != nil {
		return nil, err
	}
	return container.Task(ctx, nil)
}

// exitNotice is what became of a task's first process.
type exitNotice struct {
	code     uint32
	at       time.Time
	oomKills uint64
	// lost: nobody knows.
	lost bool
}

// awaitExit waits until the container's process has ended, however often containerd is unavailable meanwhile, and notes
// how.
func (h *taskHandle) awaitExit(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	notices := make(chan exitNotice, 2)
	askShim := sync.OnceFunc(func() { h.driver.client.Go(func() { h.askShim(ctx, notices) }) })
	if h.unseen {
		askShim()
	}
	h.driver.client.Go(func() { h.askContainerd(ctx, notices, askShim) })
	select {
	case notice := <-notices:
		if notice.lost {
			notice = h.awaitShimNotice(notice, notices)
		}
		if notice.lost {
			h.driver.killRest(h.state)
		}
		// Before Nomad can start the task anew, with the same pipes.
		endStderr(h.cfg)
		h.finish(h.exitResult(notice), notice.at)
	case <-ctx.Done():
	}
}

// awaitShimNotice waits a moment for the shim's notice when containerd reports no process: a containerd that has just
// started and is removing the shim does so.
func (h *taskHandle) awaitShimNotice(notice exitNotice, notices <-chan exitNotice) exitNotice {
	select {
	case better := <-notices:
		return better
	case <-time.After(time.Second):
		return notice
	}
}

// askContainerd waits by way of containerd. Nothing is polled: each round is one call that returns when the process
// ends or the connection breaks, and calls wait for the connection to come back. interrupted is called when it breaks.
func (h *taskHandle) askContainerd(ctx context.Context, notices chan<- exitNotice, interrupted func()) {
	for pause := time.Duration(0); ; pause = min(2*pause+100*time.Millisecond, 5*time.Second) {
		task, err := h.load(ctx)
		var status containerd.ExitStatus
		if err == nil {
			status, err = waitTask(ctx, task)
		}
		switch {
		case err == nil:
			notices <- exitNotice{status.ExitCode(), status.ExitTime(), oomKillsOf(ctx, task, status), false}
			return
		case ctx.Err() != nil:
			return
		case errdefs.IsNotFound(err):
			notices <- exitNotice{code: containerd.UnknownExitStatus, at: time.Now(), lost: true}
			return
		}
		h.driver.logger.Warn("waiting for a task was interrupted; going on", "container", h.state.ContainerID,
			"error", err)
		interrupted()
		// A connection that broke is back when the next call succeeds. The pause is for errors that come at once.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// askShim waits by way of the shim. If that fails while the shim lives, containerd reports the end. If the shim is dead,
// nothing does, and only the end of the process is seen. A shim that is being killed closes
// its connections before it is gone, so its end is waited for.
func (h *taskHandle) askShim(ctx context.Context, notices chan<- exitNotice) {
	exit, err := waitAtShim(ctx, h.state.Shim, h.state.ContainerID)
	if err == nil {
		notices <- exitNotice{exit.code, exit.at, exit.oomKills, false}
		return
	}
	h.driver.logger.Debug("a task's shim cannot be asked", "container", h.state.ContainerID, "error", err)
	if h.state.ShimProcess.IsZero() || h.state.ShimProcess.Wait(ctx) != nil {
		return
	}
	h.driver.logger.Warn("a task's shim has died", "container", h.state.ContainerID, "shim_pid", h.state.ShimProcess.PID)
	if !h.state.Init.IsZero() && h.state.Init.Wait(ctx) == nil {
		notices <- exitNotice{code: containerd.UnknownExitStatus, at: time.Now(), lost: true}
	}
}

// shimDies says whether the shim, of which a connection broke, is dead, or is so within a moment.
func (h *taskHandle) shimDies(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, shimDeathWait)
	defer cancel()
	return !h.state.ShimProcess.IsZero() && h.state.ShimProcess.Wait(ctx) == nil
}

// shimDied says whether the shim is known and does not run any more.
func (h *taskHandle) shimDied() bool {
	return !h.state.ShimProcess.IsZero() && !h.state.ShimProcess.MayLive()
}

// killRest ends what may be left of a container's processes when its shim is dead. containerd ends them too when it
// notices; but it may be unavailable, and may fail.
func (d *Driver) killRest(state taskState) {
	ctx, cancel := context.WithTimeout(d.ctx, killWait)
	defer cancel()
	var err error
	if !state.Init.IsZero() {
		err = state.Init.Signal(unix.SIGKILL)
	}
	if err = errors.Join(err, cgroup.Kill(ctx, state.Cgroup)); err != nil {
		d.logger.Error("processes of a container without a shim may be left", "container", state.ContainerID, "error", err)
	}
}

func waitTask(ctx context.Context, task containerd.Task) (containerd.ExitStatus, error) {
	exits, err := task.Wait(ctx)
	if err != nil {
		return containerd.ExitStatus{}, err
	}
	status := <-exits
	return status, status.Error()
}

// exitResult puts a task's end into Nomad's terms. A process that was ended by signal n and one that exits with 128+n
// look the same from here, as they do in a shell.
func (h *taskHandle) exitResult(notice exitNotice) *drivers.ExitResult {
	result := &drivers.ExitResult{ExitCode: int(notice.code)}
	if notice.lost {
		result.Err = h.lostError()
		return result
	}
	if signal := result.ExitCode - firstSignalStatus; signal > 0 && signal <= maxSignal {
		result.Signal = signal
	}
	if result.ExitCode != 0 && (h.sawOOM() || notice.oomKills > 0) {
		limit, _ := spec.MemoryBytes(h.cfg)
		result.OOMKilled = true
		result.Err = fmt.Errorf("out of memory: the kernel ended a process of the task at its limit of %d MiB; raise "+
			"memory or memory_max in the task's resources block if it needs more", limit/size.MiB)
	}
	return result
}

// lostError says why it is not known how the task ended.
func (h *taskHandle) lostError() error {
	if h.shimDied() {
		return fmt.Errorf("the shim of container %s (containerd-shim, process %d) is dead, killed or crashed; without it "+
			"nobody looks after the task, so what was left of the task was killed, and how it ended is not known",
			h.state.ContainerID, h.state.ShimProcess.PID)
	}
	return fmt.Errorf("containerd no longer knows the process of container %s: it or its shim was removed from outside, "+
		"or the machine restarted; how the task ended is not known", h.state.ContainerID)
}

func (h *taskHandle) finish(result *drivers.ExitResult, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.result, h.completedAt = result, at
	close(h.ended)
}

func (h *taskHandle) markOOM() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.oomKilled = true
}

func (h *taskHandle) sawOOM() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.oomKilled
}

// exit returns the task's exit result; nil while it runs.
func (h *taskHandle) exit() *drivers.ExitResult {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.result.Copy()
}

func (h *taskHandle) status() *drivers.TaskStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	status := &drivers.TaskStatus{
		ID:          h.cfg.ID,
		Name:        h.cfg.Name,
		State:       drivers.TaskStateRunning,
		StartedAt:   h.state.StartedAt,
		CompletedAt: h.completedAt,
		ExitResult:  h.result.Copy(),
		DriverAttributes: map[string]string{
			"container_id": h.state.ContainerID,
			"pid":          fmt.Sprint(h.state.PID),
		},
	}
	if h.result != nil {
		status.State = drivers.TaskStateExited
	}
	return status
}

// WaitTask returns a channel on which the task's exit result comes, or one that says why there is none: Nomad takes
// what it reads from a closed channel for a result.
func (d *Driver) WaitTask(ctx context.Context, taskID string) (<-chan *drivers.ExitResult, error) {
	h, ok := d.tasks.get(taskID)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	queried := h.noteQuery()
	results := make(chan *drivers.ExitResult, 1)
	go func() {
		defer close(results)
		defer queried()
		select {
		case <-h.ended:
			results <- h.exit()
		case <-ctx.Done():
			results <- &drivers.ExitResult{Err: ctx.Err()}
		}
	}()
	return results, nil
}

// InspectTask returns what is known of the task.
func (d *Driver) InspectTask(taskID string) (*drivers.TaskStatus, error) {
	h, ok := d.tasks.get(taskID)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	h.noteQuery()()
	return h.status(), nil
}
