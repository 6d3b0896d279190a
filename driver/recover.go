package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/reconcile"
	"github.com/tranche-gpu/tranche/driver/task"
)

// recoverTimeout is how long RecoverTask waits for containerd before it takes the task back as running.
const recoverTimeout = 5 * time.Second

// RecoverTask takes a task back after a restart of the plugin or the agent: it continues to run, and if it has ended
// meanwhile its exit result is known.
//
// The task is taken back as running if containerd is unavailable, since its shim continues: how it ended is known from the
// shim, or when containerd is back.
func (d *Driver) RecoverTask(handle *drivers.TaskHandle) error {
	if handle == nil || handle.Config == nil {
		return errors.New("recover a task: Nomad handed over nothing to recover")
	}
	if h, ok := d.tasks.Get(handle.Config.ID); ok {
		h.NoteQuery()()
		return nil
	}
	state, err := task.ReadState(handle)
	if err != nil {
		return fmt.Errorf("recover task %s: %w", handle.Config.ID, err)
	}
	d.agents.NoteTask(handle.Config)
	h := task.New(d.plugin, handle.Config, state)
	ctx, cancel := context.WithTimeout(d.client.Context(), recoverTimeout)
	defer cancel()
	_, err = h.Load(ctx)
	if errdefs.IsNotFound(err) {
		// After a reboot the record of the container is there and its processes are not; after the end of its shim
		// it may be the other way round.
		if !state.OfAnotherBoot() {
			h.KillRest()
		}
		d.removal.Discard(state.ContainerID)
		return fmt.Errorf("recover task %s: containerd has no process for container %s", handle.Config.ID,
			state.ContainerID)
	}
	if err != nil {
		d.logger.Warn("containerd does not answer; taking the task back as running", "container", state.ContainerID,
			"error", err)
	}
	d.adopt(h, err != nil)
	return nil
}

// newReconciler returns what removes orphans. d.client, d.plugin and d.removal are set.
func (d *Driver) newReconciler() *reconcile.Reconciler {
	period, grace := d.config.GC.DanglingContainers.Times()
	return reconcile.New(reconcile.Config{
		Client:    d.client,
		Logger:    d.logger,
		Agents:    &d.agents,
		Tasks:     d.tasks,
		Removal:   d.removal,
		Destroy:   func(taskID string) error { return d.DestroyTask(taskID, true) },
		HoldStart: d.starts.hold,
		ExecDir:   d.plugin.ExecDir,
		Began:     d.began,
		Period:    period,
		Grace:     grace,
		DryRun:    d.config.GC.DanglingContainers.DryRun,
	})
}
