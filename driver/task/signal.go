package task

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/signal"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
)

// hangTimeout is how long containerd, and then the shim, may take to send a signal before it is sent past them. Both together
// take less than Nomad's default kill_timeout of 5 seconds.
const hangTimeout = 2 * time.Second

// maxSignal is the highest signal that the kernel has.
const maxSignal = 64

// Stop sends the task a signal, and kills it if it has not ended after timeout, also if the signal could not be sent. Without
// a signal it is the image's STOPSIGNAL, and else SIGTERM.
func (h *Handle) Stop(timeout time.Duration, signal string) error {
	number, err := h.stopSignal(signal)
	if err != nil {
		return err
	}
	h.noteStop()
	tooLate := time.After(timeout)
	if err := h.kill(number, false); err != nil {
		h.plugin.Logger.Warn("a task's stop signal could not be sent", "container", h.State.ContainerID, "error", err)
	}
	h.plugin.Reach(failpoint.StopSignalSent)
	ctx := h.plugin.Client.Context()
	select {
	case <-h.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-tooLate:
	}
	h.plugin.Logger.Info("task did not stop in time, killing it", "container", h.State.ContainerID, "timeout", timeout)
	h.plugin.Notify(h.Config, nil, "The task did not end within %s of its stop signal, and is killed", timeout)
	return h.Kill()
}

// Signal sends the task's first process a signal by name or number.
func (h *Handle) Signal(signal string) error {
	number, err := parseSignal(signal)
	if err != nil {
		return err
	}
	if h.Exit() != nil {
		return fmt.Errorf("send %s: the task has ended", signal)
	}
	return h.kill(number, false)
}

// Kill ends the task with SIGKILL and waits until it has ended.
func (h *Handle) Kill() error {
	h.noteStop()
	if err := h.kill(unix.SIGKILL, true); err != nil {
		return err
	}
	h.plugin.Reach(failpoint.StopKillSent)
	ctx := h.plugin.Client.Context()
	select {
	case <-h.ended:
		h.plugin.Reach(failpoint.StopEnded)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(h.plugin.KillWait):
		return fmt.Errorf("container %s still runs %s after SIGKILL: a process of it hangs in the kernel, or "+
			"containerd does not report its end; restart containerd or, if that does not help, the node",
			h.State.ContainerID, h.plugin.KillWait)
	}
}

// stopSignal returns the signal that Stop sends. A bad one in the image must not keep a task from being stopped.
func (h *Handle) stopSignal(signal string) (syscall.Signal, error) {
	if signal != "" {
		return parseSignal(signal)
	}
	if number, err := parseSignal(h.State.StopSignal); err == nil {
		return number, nil
	}
	return unix.SIGTERM, nil
}

// parseSignal reads a signal by name ("SIGTERM", "term") or number.
func parseSignal(s string) (syscall.Signal, error) {
	number, err := signal.ParseSignal(s)
	if err != nil || number < 1 || number > maxSignal {
		return 0, fmt.Errorf("unknown signal %q: use a name such as \"SIGTERM\" or a number from 1 to %d", s, maxSignal)
	}
	return number, nil
}

// kill sends the container's first process a signal, or all of its processes. It is not an error if they have ended. Where
// containerd hangs or is unavailable, the shim sends it, and where that hangs or is dead, it is sent from here. SIGKILL is sent
// whatever the reason why the one before could not.
func (h *Handle) kill(signal syscall.Signal, all bool) error {
	err := h.killByContainerd(signal, all)
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	open := h.plugin.Client.Context().Err() == nil
	if open && (signal == unix.SIGKILL || client.IsUnavailable(err) || h.shimDied()) {
		h.plugin.Logger.Warn("signalling a task without containerd", "container", h.State.ContainerID,
			"signal", unix.SignalName(signal), "error", err)
		h.noteFailure()
		other := h.killWithoutContainerd(signal, all)
		if other == nil {
			return nil
		}
		err = errors.Join(err, other)
	}
	return h.plugin.Client.Recoverable(fmt.Errorf("send signal %s to container %s: %w",
		unix.SignalName(signal), h.State.ContainerID, err))
}

func (h *Handle) killByContainerd(signal syscall.Signal, all bool) error {
	if h.bypassed.Load() {
		return context.DeadlineExceeded
	}
	ctx, cancel := context.WithTimeout(h.plugin.Client.Context(), hangTimeout)
	defer cancel()
	var opts []containerd.KillOpts
	if all {
		opts = append(opts, containerd.WithKillAll)
	}
	task, err := h.Load(ctx)
	if err == nil {
		err = task.Kill(ctx, signal, opts...)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // containerd may report its own end of the call, in text only.
	}
	return err
}

// killWithoutContainerd has the shim send the signal, or, where that does not, sends it itself.
func (h *Handle) killWithoutContainerd(signal syscall.Signal, all bool) error {
	if !h.bypassed.Load() {
		ctx, cancel := context.WithTimeout(h.plugin.Client.Context(), hangTimeout)
		defer cancel()
		err := killAtShim(ctx, h.State.Shim, h.State.ContainerID, signal, all)
		if err == nil || h.State.Init.IsZero() {
			return err
		}
		h.plugin.Logger.Warn("signalling a task without its shim", "container", h.State.ContainerID,
			"signal", unix.SignalName(signal), "error", err)
	}
	if h.bypassed.CompareAndSwap(false, true) {
		h.plugin.Client.Go(h.endHungShim)
	}
	if all {
		return h.killRest()
	}
	return h.State.Init.Signal(signal)
}

// endHungShim kills a shim that does not report the end of its process: containerd and AwaitExit then do as for one that died.
func (h *Handle) endHungShim() {
	ctx := h.plugin.Client.Context()
	if h.State.Init.Wait(ctx) != nil {
		return
	}
	select {
	case <-h.ended:
	case <-ctx.Done():
	case <-time.After(h.plugin.KillWait / 2):
		h.plugin.Logger.Warn("killing a shim that hangs: it does not report the end of its process", "container",
			h.State.ContainerID, "shim_pid", h.State.ShimProcess.PID)
		if err := h.State.ShimProcess.Signal(unix.SIGKILL); err != nil {
			h.plugin.Logger.Error("a shim that hangs could not be killed", "container", h.State.ContainerID, "error", err)
		}
	}
}
