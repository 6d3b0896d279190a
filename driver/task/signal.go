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

// maxSignal is the highest signal that the kernel has.
const maxSignal = 64

// Stop sends the task a signal, and kills it if it has not ended after timeout. Without a signal it is the image's
// STOPSIGNAL, and else SIGTERM.
func (h *Handle) Stop(timeout time.Duration, signal string) error {
	number, err := h.stopSignal(signal)
	if err != nil {
		return err
	}
	if err := h.kill(number, false); err != nil {
		return err
	}
	h.plugin.Reach(failpoint.StopSignalSent)
	ctx := h.plugin.Client.Context()
	select {
	case <-h.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(timeout):
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
// containerd is unavailable, or the shim dead, it sends the signal without them.
func (h *Handle) kill(signal syscall.Signal, all bool) error {
	err := h.killByContainerd(signal, all)
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if client.IsUnavailable(err) || h.shimDied() {
		h.plugin.Logger.Warn("signalling a task without containerd", "container", h.State.ContainerID,
			"signal", unix.SignalName(signal), "error", err)
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
	ctx, cancel := h.plugin.Client.ShortCall()
	defer cancel()
	var opts []containerd.KillOpts
	if all {
		opts = append(opts, containerd.WithKillAll)
	}
	task, err := h.Load(ctx)
	if err == nil {
		err = task.Kill(ctx, signal, opts...)
	}
	return client.Cause(ctx, err)
}

// killWithoutContainerd has the shim send the signal, or, where that is dead too, sends it itself.
func (h *Handle) killWithoutContainerd(signal syscall.Signal, all bool) error {
	ctx, cancel := context.WithTimeout(h.plugin.Client.Context(), shimTimeout)
	defer cancel()
	err := killAtShim(ctx, h.State.Shim, h.State.ContainerID, signal, all)
	if err == nil || !h.shimDies(ctx) {
		return err
	}
	if all {
		h.KillRest()
		return nil
	}
	return h.State.Init.Signal(signal)
}
