package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// StopTask sends the task the signal, and kills it if it has not ended after timeout. Without a signal it is the image's
// STOPSIGNAL, and else SIGTERM.
func (d *Driver) StopTask(taskID string, timeout time.Duration, signal string) error {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	return h.Stop(timeout, signal)
}

// DestroyTask removes everything of the task: container, snapshot and whatever its shim holds. A task that runs is
// killed first if force is set.
//
// Nomad asks only once and ignores errors: the handle of what could not be killed or removed is removed all the same, so
// that it becomes an orphan for the reconciler. With gc.container = false the record and the snapshot stay; see keep.
func (d *Driver) DestroyTask(taskID string, force bool) error {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return d.destroyUnknown(taskID)
	}
	if h.Exit() == nil {
		if !force {
			return errors.New("the task runs; stop it first, or destroy it with force")
		}
		if err := h.Kill(); err != nil {
			d.tasks.Remove(taskID)
			return err
		}
	}
	ctx, cancel := d.client.ShortCall()
	defer cancel()
	err := client.Cause(ctx, d.removeOrKeep(ctx, h.State.ContainerID))
	d.tasks.Remove(taskID)
	d.reach(failpoint.DestroyHandleRemoved)
	if client.IsUnavailable(err) {
		// The task has ended; what is left of it goes when containerd is back.
		d.client.Go(func() { d.removeWhenBack(h.State.ContainerID, d.removeOrKeep) })
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove container %s: %w", h.State.ContainerID, err)
	}
	var options spec.TaskConfig
	if h.Config.DecodeDriverConfig(&options) == nil {
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
