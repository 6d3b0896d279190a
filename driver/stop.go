package driver

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

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

// kill kills a task, which Nomad restarts or not as its job says.
func (d *Driver) kill(taskID string) error {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	return h.Kill()
}

// DestroyTask removes everything of the task: container, snapshot and whatever its shim holds. A task that runs is
// killed first if force is set.
//
// Nomad calls it only once and ignores errors: the handle is removed even if the task could not be killed or its container
// removed, so that these become orphans for the reconciler. With gc.container = false the record and the snapshot stay.
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
	later, err := d.removal.OrLater(h.State.ContainerID, d.removal.RemoveEnded)
	d.tasks.Remove(taskID)
	d.reach(failpoint.DestroyHandleRemoved)
	if err != nil {
		return fmt.Errorf("remove container %s: %w", h.State.ContainerID, err)
	}
	if later {
		return nil
	}
	var options spec.TaskConfig
	if h.Config.DecodeDriverConfig(&options) == nil {
		d.images.NoteEnd(options.Image)
	}
	return nil
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
		if err := d.removal.RemoveEnded(ctx, container.ID()); err != nil {
			return d.client.Recoverable(fmt.Errorf("remove container %s: %w", container.ID(), err))
		}
	}
	return nil
}
