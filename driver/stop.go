package driver

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/moby/sys/signal"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// maxSignal is the highest signal that the kernel has.
const maxSignal = 64

// killWait is how long a process may take to end after SIGKILL, unless a test says otherwise.
const killWait = 15 * time.Second

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
	if err := h.kill(number, false); err != nil {
		return err
	}
	d.reach(failpoint.StopSignalSent)
	select {
	case <-h.ended:
		return nil
	case <-d.ctx.Done():
		return d.ctx.Err()
	case <-time.After(timeout):
	}
	d.logger.Info("task did not stop in time, killing it", "container", h.state.ContainerID, "timeout", timeout)
	d.notify(h.cfg, nil, "The task did not end within %s of its stop signal, and is killed", timeout)
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
	number, err := signal.ParseSignal(s)
	if err != nil || number < 1 || number > maxSignal {
		return 0, fmt.Errorf("unknown signal %q: use a name such as \"SIGTERM\" or a number from 1 to %d", s, maxSignal)
	}
	return number, nil
}

// kill sends the container's first process a signal, or all of its processes. That they have ended already is no error.
// Where containerd is unavailable, or the shim dead, it goes another way.
func (h *taskHandle) kill(signal syscall.Signal, all bool) error {
	err := h.killByContainerd(signal, all)
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if client.IsUnavailable(err) || h.shimDied() {
		h.driver.logger.Warn("signalling a task without containerd", "container", h.state.ContainerID,
			"signal", unix.SignalName(signal), "error", err)
		other := h.killWithoutContainerd(signal, all)
		if other == nil {
			return nil
		}
		err = errors.Join(err, other)
	}
	return h.driver.client.Recoverable(fmt.Errorf("send signal %s to container %s: %w",
		unix.SignalName(signal), h.state.ContainerID, err))
}

func (h *taskHandle) killByContainerd(signal syscall.Signal, all bool) error {
	ctx, cancel := h.driver.client.ShortCall()
	defer cancel()
	var opts []containerd.KillOpts
	if all {
		opts = append(opts, containerd.WithKillAll)
	}
	task, err := h.load(ctx)
	if err == nil {
		err = task.Kill(ctx, signal, opts...)
	}
	return client.Cause(ctx, err)
}

// killWithoutContainerd has the shim send the signal, and if that is dead too the kernel.
func (h *taskHandle) killWithoutContainerd(signal syscall.Signal, all bool) error {
	ctx, cancel := context.WithTimeout(h.driver.client.Context(), shimTimeout)
	defer cancel()
	err := killAtShim(ctx, h.state.Shim, h.state.ContainerID, signal, all)
	if err == nil || !h.shimDies(ctx) {
		return err
	}
	if all {
		h.driver.killRest(h.state)
		return nil
	}
	return h.state.Init.Signal(signal)
}

// killNow ends the task with SIGKILL and waits until it has ended.
func (h *taskHandle) killNow() error {
	if err := h.kill(unix.SIGKILL, true); err != nil {
		return err
	}
	h.driver.reach(failpoint.StopKillSent)
	select {
	case <-h.ended:
		h.driver.reach(failpoint.StopEnded)
		return nil
	case <-h.driver.ctx.Done():
		return h.driver.ctx.Err()
	case <-time.After(h.driver.killWait):
		return fmt.Errorf("container %s still runs %s after SIGKILL: a process of it hangs in the kernel, or "+
			"containerd does not report its end; restart containerd or, if that does not help, the node", h.state.ContainerID, h.driver.killWait)
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
	return h.kill(number, false)
}

// DestroyTask removes everything of the task: container, snapshot and whatever its shim holds. A task that runs is
// killed first if force is set.
//
// Nomad asks only once and ignores errors: the handle of what could not be killed or removed is removed all the same, so
// that it becomes an orphan for the reconciler. With gc.container = false the record and the snapshot stay; see keep.
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
			d.tasks.remove(taskID)
			return err
		}
	}
	ctx, cancel := d.client.ShortCall()
	defer cancel()
	err := client.Cause(ctx, d.removeOrKeep(ctx, h.state.ContainerID))
	d.tasks.remove(taskID)
	d.reach(failpoint.DestroyHandleRemoved)
	if client.IsUnavailable(err) {
		// The task has ended; what is left of it goes when containerd is back.
		d.client.Go(func() { d.removeWhenBack(h.state.ContainerID, d.removeOrKeep) })
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove container %s: %w", h.state.ContainerID, err)
	}
	var options spec.TaskConfig
	if h.cfg.DecodeDriverConfig(&options) == nil {
		d.images.NoteEnd(options.Image)
	}
	return nil
}

// removeOrKeep removes what a task has left that ended, or keeps what gc.container = false is for.
func (d *Driver) removeOrKeep(ctx context.Context, id string) error {
	if d.config.GC.Container {
		return d.remove(ctx, id)
	}
	return d.keep(ctx, id)
}

// kept is the value of naming.Kept.
const kept = "true"

// keep leaves a container's record and snapshot for somebody to look at what the task left behind, and removes what costs
// more than disk: shim, cgroup, mounts. It is marked, so that neither a later run of the task nor the reconciler takes
// it for an orphan; once the operator sets gc.container = true again, the reconciler removes it.
func (d *Driver) keep(ctx context.Context, id string) error {
	unlock, err := d.removals.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	container, err := d.client.LoadContainer(ctx, id)
	if err == nil {
		err = removeTask(ctx, container)
	}
	if err == nil {
		_, err = container.SetLabels(ctx, map[string]string{naming.Kept: kept})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return d.removeLease(ctx, id)
}

// removeWhenBack removes a container, or a part of it, as soon as containerd answers again.
func (d *Driver) removeWhenBack(id string, remove func(context.Context, string) error) {
	// The call waits for containerd. The pause is for errors that come at once.
	for pause := time.Duration(0); d.ctx.Err() == nil; pause = min(2*pause+100*time.Millisecond, 5*time.Second) {
		if !d.client.Pause(pause) {
			return
		}
		if _, err := d.client.IsServing(d.ctx); err != nil {
			continue
		}
		ctx, cancel := d.client.Call()
		err := remove(ctx, id)
		cancel()
		if err == nil {
			return
		}
		d.logger.Warn("a container that was to be removed is still there", "container", id, "error", err)
		if !client.IsUnavailable(err) {
			return
		}
	}
}

// destroyUnknown removes the container of a task that this plugin process could not recover.
func (d *Driver) destroyUnknown(taskID string) error {
	ctx, cancel := d.client.Call()
	defer cancel()
	containers, err := d.client.Containers(ctx, naming.Filter(naming.TaskID, taskID))
	if err != nil {
		return d.client.Recoverable(fmt.Errorf("look for the container of task %s: %w", taskID, err))
	}
	if len(containers) == 0 {
		return drivers.ErrTaskNotFound
	}
	for _, container := range containers {
		if err := d.removeOrKeep(ctx, container.ID()); err != nil {
			return d.client.Recoverable(fmt.Errorf("remove container %s: %w", container.ID(), err))
		}
	}
	return nil
}

// remove removes everything that goes by a container's name, as far as it exists: the task, by force, the container's
// record, the snapshot and the lease of its start.
func (d *Driver) remove(ctx context.Context, id string) error {
	unlock, err := d.removals.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	container, err := d.client.LoadContainer(ctx, id)
	if err == nil {
		err = removeTask(ctx, container)
	}
	if err == nil {
		d.reach(failpoint.DestroyTaskRemoved)
		err = container.Delete(ctx)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	d.reach(failpoint.DestroyContainerRemoved)
	err = d.client.SnapshotService(d.config.Snapshotter).Remove(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove its snapshot: %w", err)
	}
	d.reach(failpoint.DestroySnapshotRemoved)
	if err := d.removeLease(ctx, id); err != nil {
		return err
	}
	d.reach(failpoint.DestroyLeaseRemoved)
	return nil
}

func (d *Driver) removeLease(ctx context.Context, id string) error {
	err := d.client.LeasesService().Delete(ctx, leases.Lease{ID: id})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove the lease of its start: %w", err)
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
