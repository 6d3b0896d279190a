package reconcile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/naming"
)

// orphan is something in containerd that the driver made and no task uses.
type orphan struct {
	kind   string
	id     string
	labels map[string]string
	made   time.Time
	remove func(context.Context) error
}

// The kinds of orphans.
const (
	kindContainer = "container"
	kindSnapshot  = "snapshot"
	kindLease     = "lease"
)

// orphans lists what has the driver's labels and belongs to no task that this plugin process knows.
func (r *Reconciler) orphans(ctx context.Context) ([]orphan, error) {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	owned := naming.Filter(naming.Owned, naming.PluginName)
	all, err := r.Client.ContainerService().List(ctx, owned)
	if err != nil {
		return nil, err
	}
	var found []orphan
	has := map[string]bool{}
	for _, c := range all {
		has[c.ID] = true
		keep := c.Labels[naming.Kept] == naming.IsKept && r.Removal.KeepEnded
		if !keep && !r.Tasks.HasContainer(c.ID) {
			found = append(found, orphan{kindContainer, c.ID, c.Labels, c.CreatedAt,
				func(ctx context.Context) error { return r.Removal.Remove(ctx, c.ID) }})
		}
	}
	held, err := r.Client.LeasesService().List(ctx, owned)
	for _, l := range held {
		found = append(found, orphan{kindLease, l.ID, l.Labels, l.CreatedAt,
			// What only the lease held is removed at once. The lease may have been removed with its container.
			func(ctx context.Context) error {
				err := r.Client.LeasesService().Delete(ctx, l, leases.SynchronousDelete)
				if errdefs.IsNotFound(err) {
					return nil
				}
				return err
			}})
	}
	walk := func(_ context.Context, info snapshots.Info) error {
		if !has[info.Name] && info.Kind != snapshots.KindCommitted {
			found = append(found, orphan{kindSnapshot, info.Name, info.Labels, info.Created,
				func(ctx context.Context) error { return r.Removal.Remove(ctx, info.Name) }})
		}
		return nil
	}
	return found, errors.Join(err, r.Client.SnapshotService(r.Client.Snapshotter).Walk(ctx, walk, owned))
}

// whyOrphan returns why something is an orphan; "" if it may belong to a task. It does if its allocation exists below a
// directory of another agent, whose plugin may be about to start again.
func (r *Reconciler) whyOrphan(o orphan, before time.Time) string {
	dir := o.labels[naming.AllocDir]
	switch {
	case dir == "" || o.made.After(before):
		return ""
	case r.Agents.owns(dir):
		return "no task of this agent uses it"
	case isGone(dir):
		return "the directory of its allocation is gone"
	}
	return ""
}

// isGone reports whether an allocation's directory was removed. Where its parent is missing too, a file system may not be
// mounted.
func isGone(dir string) bool {
	_, errRoot := os.Stat(filepath.Dir(dir))
	_, err := os.Stat(dir)
	return errRoot == nil && errors.Is(err, os.ErrNotExist)
}

// removeOrphan removes an orphan unless its task is being started, and reports whether it did.
func (r *Reconciler) removeOrphan(ctx context.Context, o orphan, why string) bool {
	ctx, release, ok := r.HoldStart(ctx, o.labels[naming.AllocID], o.labels[naming.Task])
	if !ok {
		return false
	}
	defer release()
	// A lease is of no use to a task that runs.
	if o.kind != kindLease && r.Tasks.HasContainer(o.id) {
		return false
	}
	logger := r.Logger.With(o.kind, o.id, "task_id", o.labels[naming.TaskID], "made", o.made, "why", why)
	if r.DryRun {
		logger.Info("found an orphan; dry_run keeps it")
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	if err := o.remove(ctx); err != nil {
		logger.Warn("cannot remove an orphan; trying again later", "error", err)
		return false
	}
	logger.Info("removed an orphan")
	return true
}
