package task

import (
	"context"
	"errors"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/cgroup"
)

// firstSignalStatus is what a shell, and containerd, adds to the number of the signal that ended a process.
const firstSignalStatus = 128

// killedStatus is the exit status of a process that SIGKILL ended, which is how the kernel ends one for lack of memory.
const killedStatus = firstSignalStatus + 9

// oomAftermath is how long a task may go on after the kernel ended one of its processes and still end because of it.
const oomAftermath = time.Minute

// exitNotice is how a task's first process ended.
type exitNotice struct {
	code     uint32
	at       time.Time
	oomKills uint64
	// lost is set if it is not known how the process ended.
	lost bool
}

// AwaitExit blocks until the container's first process has ended, however often containerd is unavailable meanwhile, and
// notes how. It also returns when ctx ends. unavailable is whether containerd is unavailable now.
func (h *Handle) AwaitExit(ctx context.Context, unavailable bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	notices := make(chan exitNotice, 2)
	if unavailable {
		h.noteFailure()
	}
	h.plugin.Client.Go(func() { h.awaitContainerd(ctx, notices) })
	h.plugin.Client.Go(func() {
		select {
		case <-h.failed:
			h.awaitShim(ctx, notices)
		case <-ctx.Done():
		}
	})
	select {
	case notice := <-notices:
		if notice.lost {
			notice = awaitBetterNotice(notice, notices)
		}
		if notice.lost {
			h.KillRest()
		}
		// Before Nomad can start the task again, with the same pipes.
		EndStderr(h.Config)
		h.finish(h.exitResult(notice), notice.at)
	case <-ctx.Done():
	}
}

// awaitBetterNotice waits a moment for the shim's notice when containerd reports no process: a containerd that has just
// started and is removing the shim does so.
func awaitBetterNotice(notice exitNotice, notices <-chan exitNotice) exitNotice {
	select {
	case better := <-notices:
		return better
	case <-time.After(time.Second):
		return notice
	}
}

// awaitContainerd waits by way of containerd. Nothing is polled: each round is one call that returns when the process
// ends or the connection breaks, and calls wait for the connection to come back.
func (h *Handle) awaitContainerd(ctx context.Context, notices chan<- exitNotice) {
	for pause := time.Duration(0); ; pause = min(2*pause+100*time.Millisecond, 5*time.Second) {
		task, err := h.Load(ctx)
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
		h.plugin.Logger.Warn("waiting for a task was interrupted; going on", "container", h.State.ContainerID,
			"error", err)
		h.noteFailure()
		// A connection that broke is back when the next call succeeds. The pause is for errors that come at once.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
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

// awaitShim waits by way of the shim. If that fails while the shim lives, containerd reports the end. If the shim is dead,
// neither does: the end of the process is all that can be known. A shim that is being killed closes its connections before
// it is gone, so its end is waited for.
func (h *Handle) awaitShim(ctx context.Context, notices chan<- exitNotice) {
	notice, err := waitAtShim(ctx, h.State.Shim, h.State.ContainerID)
	if err == nil {
		notices <- notice
		return
	}
	h.plugin.Logger.Debug("a task's shim cannot be queried", "container", h.State.ContainerID, "error", err)
	if h.State.ShimProcess.IsZero() || h.State.ShimProcess.Wait(ctx) != nil {
		return
	}
	h.plugin.Logger.Warn("a task's shim has died", "container", h.State.ContainerID, "shim_pid", h.State.ShimProcess.PID)
	if !h.State.Init.IsZero() && h.State.Init.Wait(ctx) == nil {
		notices <- exitNotice{code: containerd.UnknownExitStatus, at: time.Now(), lost: true}
	}
}

// KillRest ends what may be left of a container's processes when its shim is dead. containerd ends them too when it
// notices; but it may be unavailable, and may fail.
func (h *Handle) KillRest() {
	if err := h.killRest(); err != nil {
		h.plugin.Logger.Error("processes of a container without a shim may be left", "container", h.State.ContainerID,
			"error", err)
	}
}

// killRest ends all processes of the container without containerd and its shim.
func (h *Handle) killRest() error {
	ctx, cancel := context.WithTimeout(h.plugin.Client.Context(), h.plugin.KillWait)
	defer cancel()
	var err error
	if !h.State.Init.IsZero() {
		err = h.State.Init.Signal(unix.SIGKILL)
	}
	return errors.Join(err, cgroup.Kill(ctx, h.State.Cgroup))
}

// exitResult returns a task's end in Nomad's terms. A process that was ended by signal n and one that exits with 128+n
// look the same from here, as they do in a shell.
func (h *Handle) exitResult(notice exitNotice) *drivers.ExitResult {
	result := &drivers.ExitResult{ExitCode: int(notice.code)}
	if notice.lost {
		result.Err = h.lostError()
		return result
	}
	if signal := result.ExitCode - firstSignalStatus; signal > 0 && signal <= maxSignal {
		result.Signal = signal
	}
	if h.oomCausedEnd(notice) {
		result.OOMKilled = true
		result.Err = fmt.Errorf("out of memory: the kernel ended a process of the task%s; raise "+
			"memory or memory_max in the task's resources block if it needs more", h.atMemoryLimit())
	}
	return result
}

// lostError says why it is not known how the task ended.
func (h *Handle) lostError() error {
	if h.shimDied() {
		return fmt.Errorf("the shim of container %s (containerd-shim, process %d) is dead, killed or crashed; without it "+
			"nobody looks after the task, so what was left of the task was killed, and how it ended is not known",
			h.State.ContainerID, h.State.ShimProcess.PID)
	}
	return fmt.Errorf("containerd no longer knows the process of container %s: it or its shim was removed from outside, "+
		"or the machine restarted; how the task ended is not known", h.State.ContainerID)
}

// shimDied reports whether the shim is known and does not run any more.
func (h *Handle) shimDied() bool {
	return !h.State.ShimProcess.IsZero() && !h.State.ShimProcess.MayLive()
}
