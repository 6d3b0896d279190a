package driver

import (
	"context"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/task"
)

// newPlugin returns what tasks use of the driver. d.client and d.runDir are set.
func (d *Driver) newPlugin() *task.Plugin {
	return &task.Plugin{
		Client:       d.client,
		Logger:       d.logger,
		Notify:       d.notify,
		Reach:        d.reach,
		ExecDir:      filepath.Join(d.runDir, "exec"),
		TicksPerCore: d.ticksPerCore,
		KillWait:     task.KillWait,
		Runtimes:     &d.runtimes,
	}
}

// adopt adds a task to those that are known, and starts to wait for its end. unavailable says that containerd is.
func (d *Driver) adopt(h *task.Handle, unavailable bool) {
	d.tasks.Put(h)
	d.client.Go(func() { h.AwaitExit(d.client.Context(), unavailable) })
	d.health.Add(h.Config)
}

// WaitTask returns a channel on which the task's exit result is sent, or one that says why there is none.
func (d *Driver) WaitTask(ctx context.Context, taskID string) (<-chan *drivers.ExitResult, error) {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	return h.Wait(ctx), nil
}

// InspectTask returns what is known of the task.
func (d *Driver) InspectTask(taskID string) (*drivers.TaskStatus, error) {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	h.NoteQuery()()
	return h.Status(), nil
}

// TaskStats streams the task's use of CPU and memory until the task ends.
func (d *Driver) TaskStats(ctx context.Context, taskID string, interval time.Duration,
) (<-chan *drivers.TaskResourceUsage, error) {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	if own, err := time.ParseDuration(d.config.StatsInterval); err == nil {
		interval = own
	}
	return h.Stats(ctx, interval), nil
}

// SignalTask sends the task's first process a signal.
func (d *Driver) SignalTask(taskID string, signal string) error {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return drivers.ErrTaskNotFound
	}
	return h.Signal(signal)
}

// ExecTask runs a command in the task's container and returns its output, or the end of that.
func (d *Driver) ExecTask(taskID string, command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	return h.Exec(command, timeout)
}

// ExecTaskStreaming runs a command in the task's container, connected to the caller's streams.
func (d *Driver) ExecTaskStreaming(ctx context.Context, taskID string, options *drivers.ExecOptions,
) (*drivers.ExitResult, error) {
	defer options.Stdout.Close()
	defer options.Stderr.Close()
	h, ok := d.tasks.Get(taskID)
	if !ok {
		return nil, drivers.ErrTaskNotFound
	}
	return h.ExecStreaming(ctx, options)
}
