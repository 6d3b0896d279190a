package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// maxSignal is the highest signal that the kernel has.
const maxSignal = 64

// killWait is how long a process may take to end after SIGKILL.
const killWait = 15 * time.Second

// destroyTimeout is how long DestroyTask waits for a containerd that is away before it leaves the work for later.
const destroyTimeout = 10 * time.Second

// StopTask asks the task to end by the signal, and makes it end when it has not after timeout. Without a signal it is
// the image's STOPSIGNAL, and else SIGTERM.
func (d *Driver) StopTask(taskID string, timeout time.Duration, signal string) error {
	h, ok := d.tasks.get(taskID)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	number, err := h.stopSignal(signal)
	if err != nil {
		return err
	}
	if err := h.kill(number); err != nil {
		return err
	}
	select {
	case <-h.ended:
		return nil
	case <-d.ctx.Done():
		return d.ctx.Err()
	case <-time.After(timeout):
	}
	d.logger.Info("task did not stop in time, killing it", "container", h.state.ContainerID, "timeout", timeout)
	return h.killNow()
}

// stopSignal is the signal that StopTask is to send. A bad one in the image must not keep a task from being stopped.
func (h *taskHandle) stopSignal(asked string) (syscall.Signal, error) {
	if asked != "" {
		return parseSignal(asked)
	}
	if number, err := parseSignal(h.state.StopSignal); err == nil {
		return number, nil
	}
	return unix.SIGTERM, nil
}

// parseSignal reads a signal by name ("SIGTERM", "term") or number.
func parseSignal(s string) (syscall.Signal, error) {
	if number, err := strconv.Atoi(s); err == nil && number > 0 && number <= maxSignal {
		return syscall.Signal(number), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if number := unix.SignalNum(name); number != 0 {
		return number, nil
	}
	return 0, fmt.Errorf("signal %q is not known: use a name such as \"SIGTERM\" or a number from 1 to %d", s, maxSignal)
}

// kill sends the container's first process a signal. That it has ended already is no error.
func (h *taskHandle) kill(signal syscall.Signal, opts ...containerd.KillOpts) error {
	ctx, cancel := h.driver.call()
	defer cancel()
	task, err := h.load(ctx)
	if err == nil {
		err = task.Kill(ctx, signal, opts...)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return h.driver.away(fmt.Errorf("send signal %s to container %s: %w",
			unix.SignalName(signal), h.state.ContainerID, err))
	}
	return nil
}

// killNow ends the task with SIGKILL and waits until it has ended.
func (h *taskHandle) killNow() error {
	if err := h.kill(unix.SIGKILL, containerd.WithKillAll); err != nil {
		return err
	}
	select {
	case <-h.ended:
		return nil
	case <-h.driver.ctx.Done():
		return h.driver.ctx.Err()
	case <-time.After(killWait):
		return fmt.Errorf("container %s still runs %s after SIGKILL: a process of it hangs in the kernel, or "+
			"containerd does not tell of its end", h.state.ContainerID, killWait)
	}
}

// SignalTask sends the task's first process a signal.
func (d *Driver) SignalTask(taskID string, signal string) error {
	h, ok := d.tasks.get(taskID)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	number, err := parseSignal(signal)
	if err != nil {
		return err
	}
	if h.exit() != nil {
		return fmt.Errorf("send %s: the task has ended", signal)
	}
	return h.kill(number)
}

// DestroyTask removes everything of the task: container, snapshot and whatever its shim holds. A task that runs is
// killed first if force is set.
func (d *Driver) DestroyTask(taskID string, force bool) error {
	h, ok := d.tasks.get(taskID)
	if !ok {
		return d.destroyUnknown(taskID)
	}
	if h.exit() == nil {
		if !force {
			return errors.New("the task runs; stop it first, or destroy it with force")
		}
		if err := h.killNow(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(d.namespaced(d.ctx), destroyTimeout)
	defer cancel()
	err := d.removeContainer(ctx, h.state.ContainerID)
	if isAway(err) {
		// Nomad asks only once. The task has ended; what is left of it goes when containerd is back.
		d.spawn(func() { d.removeWhenBack(h.state.ContainerID) })
		err = nil
	}
	if err != nil {
		return fmt.Errorf("remove container %s: %w", h.state.ContainerID, err)
	}
	d.tasks.remove(taskID)
	d.imageUnused(h.cfg)
	return nil
}

// removeWhenBack removes a container as soon as containerd answers again.
func (d *Driver) removeWhenBack(id string) {
	// The call waits for containerd. The pause is for errors that come at once.
	for pause := time.Duration(0); d.ctx.Err() == nil; pause = min(2*pause+100*time.Millisecond, 5*time.Second) {
		if !d.pause(pause) {
			return
		}
		if _, err := d.client.IsServing(d.ctx); err != nil {
			continue
		}
		ctx, cancel := d.call()
		err := d.removeContainer(ctx, id)
		cancel()
		if err == nil {
			return
		}
		d.logger.Warn("a container that was to be removed is still there", "container", id, "error", err)
		if !isAway(err) {
			return
		}
	}
}

// pause waits, and says whether the driver still runs then.
func (d *Driver) pause(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-d.ctx.Done():
		return false
	}
}

// destroyUnknown removes the container of a task that this life of the plugin could not recover.
func (d *Driver) destroyUnknown(taskID string) error {
	ctx, cancel := d.call()
	defer cancel()
	containers, err := d.client.Containers(ctx, fmt.Sprintf("labels.%q==%q", labelTaskID, taskID))
	if err != nil {
		return d.away(fmt.Errorf("look for the container of task %s: %w", taskID, err))
	}
	if len(containers) == 0 {
		return drivers.ErrTaskNotFound
	}
	for _, container := range containers {
		if err := d.removeContainer(ctx, container.ID()); err != nil {
			return d.away(fmt.Errorf("remove container %s: %w", container.ID(), err))
		}
	}
	return nil
}

// removeContainer removes a container with everything that goes by its name, as far as it exists: the task, by force,
// the record and the snapshot.
func (d *Driver) removeContainer(ctx context.Context, id string) error {
	container, err := d.client.LoadContainer(ctx, id)
	if err == nil {
		err = removeTask(ctx, container)
	}
	if err == nil {
		err = container.Delete(ctx)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	err = d.client.SnapshotService(d.config.Snapshotter).Remove(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove its snapshot: %w", err)
	}
	return nil
}

func removeTask(ctx context.Context, container containerd.Container) error {
	task, err := container.Task(ctx, nil)
	if err == nil {
		_, err = task.Delete(ctx, containerd.WithProcessKill)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("end its processes: %w", err)
	}
	return nil
}
