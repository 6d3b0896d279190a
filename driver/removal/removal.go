// Package removal removes containers with all that belongs to them, at once or when containerd is available again. It must
// not decide which: the driver and the reconciler do.
package removal

import (
	"context"
	"errors"
	"fmt"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/internal/keylock"
)

// Remover removes containers.
type Remover struct {
	Client *client.Client
	Logger hclog.Logger
	// KeepEnded is gc.container = false: RemoveEnded keeps records and snapshots.
	KeepEnded bool
	// Reach is called at each failpoint.
	Reach func(failpoint.Point)

	// locks has a lock for each container that is being removed.
	locks keylock.Locks
}

// Remove removes everything that has a container's name, as far as it exists: the task, by force, the container's record,
// the snapshot and the lease of its start.
func (r *Remover) Remove(ctx context.Context, id string) error {
	unlock, err := r.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	container, err := r.endTask(ctx, id)
	if err == nil {
		r.Reach(failpoint.DestroyTaskRemoved)
		err = container.Delete(ctx)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	r.Reach(failpoint.DestroyContainerRemoved)
	err = r.Client.SnapshotService(r.Client.Snapshotter).Remove(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove its snapshot: %w", err)
	}
	r.Reach(failpoint.DestroySnapshotRemoved)
	if err := r.RemoveLease(ctx, id); err != nil {
		return err
	}
	r.Reach(failpoint.DestroyLeaseRemoved)
	return nil
}

// RemoveEnded removes what a task that ended left, except what gc.container = false keeps.
func (r *Remover) RemoveEnded(ctx context.Context, id string) error {
	if r.KeepEnded {
		return r.keep(ctx, id)
	}
	return r.Remove(ctx, id)
}

// keep leaves a container's record and snapshot for inspection, and removes what costs more than disk: shim, cgroup, mounts.
// Its label keeps a later run of the task and the reconciler from removing it as an orphan; once the operator sets
// gc.container = true again, the reconciler removes it.
func (r *Remover) keep(ctx context.Context, id string) error {
	unlock, err := r.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	container, err := r.endTask(ctx, id)
	if err == nil {
		_, err = container.SetLabels(ctx, map[string]string{naming.Kept: naming.IsKept})
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return r.RemoveLease(ctx, id)
}

// endTask ends the processes of a container by force, if it has any, and returns the container. The container's lock is held.
func (r *Remover) endTask(ctx context.Context, id string) (containerd.Container, error) {
	container, err := r.Client.LoadContainer(ctx, id)
	if err != nil {
		return nil, err
	}
	task, err := r.loadTask(ctx, container)
	if err == nil {
		_, err = task.Delete(ctx, containerd.WithProcessKill)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("end its processes: %w", err)
	}
	return container, nil
}

// shimPatience is how long a shim may take to report the state of its container.
const shimPatience = 10 * time.Second

// loadTask returns the task of a container. A shim that hangs is killed, whereupon containerd ends the container's processes and
// forgets the task.
func (r *Remover) loadTask(ctx context.Context, container containerd.Container) (containerd.Task, error) {
	limited, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	for {
		task, err := container.Task(limited, nil)
		var status containerd.Status
		if err == nil {
			status, err = task.Status(limited)
		}
		// containerd queries the shim. Up to 2.1 it says that the status is unknown if that does not answer.
		silent := err == nil && status.Status == containerd.Unknown || err != nil && client.IsUnavailable(err)
		switch {
		case !silent || ctx.Err() != nil:
			return task, err
		case limited.Err() == nil:
			time.Sleep(creationPoll)
			continue
		}
		// If it is containerd itself that hangs or is unavailable, nothing helps.
		if serving, servingErr := r.Client.IsServing(ctx); servingErr != nil || !serving {
			return nil, errors.Join(err, servingErr)
		}
		return nil, r.endHungShim(ctx, container)
	}
}

// endHungShim kills a container's shim, and returns when containerd has removed what was left, with its error for a task that it
// does not know.
func (r *Remover) endHungShim(ctx context.Context, container containerd.Container) error {
	shims, err := r.shimsOf(container.ID())
	if err != nil {
		return err
	}
	bundles := map[string]bool{}
	addBundles(bundles, shims)
	r.killShims(shims, "that hangs")
	for {
		if _, err := container.Task(ctx, nil); errdefs.IsNotFound(err) && !anyExists(bundles) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until containerd has removed a shim that hung: %w", ctx.Err())
		case <-time.After(creationPoll):
		}
	}
}

// RemoveLease removes the lease of a container's start, if it exists.
func (r *Remover) RemoveLease(ctx context.Context, id string) error {
	err := r.Client.LeasesService().Delete(ctx, leases.Lease{ID: id})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove the lease of its start: %w", err)
	}
	return nil
}

// OrLater calls remove, one of the Remover's methods. If containerd is unavailable, that is not an error: remove is called again
// when containerd is back, and later is set.
func (r *Remover) OrLater(id string, remove func(context.Context, string) error) (later bool, err error) {
	ctx, cancel := r.Client.ShortCall()
	defer cancel()
	err = client.Cause(ctx, remove(ctx, id))
	if !client.IsUnavailable(err) {
		return false, err
	}
	r.Client.Go(func() { r.whenBack(id, remove) })
	return true, nil
}

// whenBack calls remove as soon as containerd answers again.
func (r *Remover) whenBack(id string, remove func(context.Context, string) error) {
	// The call waits for containerd. The pause is for errors that come at once.
	for pause := time.Duration(0); r.Client.Pause(pause); pause = min(2*pause+100*time.Millisecond, 5*time.Second) {
		if _, err := r.Client.IsServing(r.Client.Context()); err != nil {
			continue
		}
		ctx, cancel := r.Client.Call()
		err := remove(ctx, id)
		cancel()
		if err == nil {
			return
		}
		r.Logger.Warn("a container that was to be removed is still there", "container", id, "error", err)
		if !client.IsUnavailable(err) {
			return
		}
	}
}

// Discard removes what a failed start left, at once or later. It logs an error, since users need that of the start.
func (r *Remover) Discard(id string) {
	if _, err := r.OrLater(id, r.Remove); err != nil {
		r.Logger.Warn("a failed start left something in containerd", "container", id, "error", err)
	}
}
