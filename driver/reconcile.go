package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/naming"
)

// The reconciler removes orphans: what an earlier plugin process left that died during a start or a removal, and tasks that
// Nomad has lost. It goes by labels, and by names where there are none (leftovers.go): it
// touches nothing that this driver did not make, and nothing that another agent on the same containerd may own.

// reconcile works as long as the driver runs. It begins when Nomad has had the time to take its tasks back.
func (d *Driver) reconcile() {
	period, grace := d.config.GC.DanglingContainers.Times()
	for wait := grace; d.client.Pause(wait); wait = period {
		if _, err := d.reconcileOnce(d.client.Context(), grace); err != nil && d.ctx.Err() == nil {
			d.logger.Warn("cannot look for all orphans; trying again", "in", period, "error", err)
		}
	}
}

// orphan is something of ours in containerd that seems to belong to no task.
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

// reconcileOnce removes the orphans that are older than grace, and returns what they were.
func (d *Driver) reconcileOnce(ctx context.Context, grace time.Duration) ([]string, error) {
	if err := d.client.CheckServing(); err != nil {
		return nil, err
	}
	d.dropLostTasks(grace)
	removed := d.removeStalePipes()
	found, err := d.orphans(ctx)
	for _, o := range found {
		if why := d.whyOrphan(o, time.Now().Add(-grace)); why != "" && d.removeOrphan(ctx, o, why) {
			removed = append(removed, o.kind+" "+o.id)
		}
	}
	removed = append(removed, d.removeStaleCgroups(grace)...)
	return append(removed, d.endEmptyShims(ctx, time.Now().Add(-grace))...), err
}

// orphans lists what has our labels and belongs to no task that this plugin process knows.
func (d *Driver) orphans(ctx context.Context) ([]orphan, error) {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	owned := naming.Filter(naming.Owned, PluginName)
	all, err := d.client.ContainerService().List(ctx, owned)
	if err != nil {
		return nil, err
	}
	var found []orphan
	has := map[string]bool{}
	for _, c := range all {
		has[c.ID] = true
		keep := c.Labels[naming.Kept] == naming.IsKept && !d.config.GC.Container
		if !keep && !d.tasks.HasContainer(c.ID) {
			found = append(found, orphan{kindContainer, c.ID, c.Labels, c.CreatedAt,
				func(ctx context.Context) error { return d.removal.Remove(ctx, c.ID) }})
		}
	}
	held, err := d.client.LeasesService().List(ctx, owned)
	for _, l := range held {
		found = append(found, orphan{kindLease, l.ID, l.Labels, l.CreatedAt,
			// What it held goes at once. It may have gone with its container.
			func(ctx context.Context) error {
				err := d.client.LeasesService().Delete(ctx, l, leases.SynchronousDelete)
				if errdefs.IsNotFound(err) {
					return nil
				}
				return err
			}})
	}
	walk := func(_ context.Context, info snapshots.Info) error {
		if !has[info.Name] && info.Kind != snapshots.KindCommitted {
			found = append(found, orphan{kindSnapshot, info.Name, info.Labels, info.Created,
				func(ctx context.Context) error { return d.removal.Remove(ctx, info.Name) }})
		}
		return nil
	}
	return found, errors.Join(err, d.client.SnapshotService(d.config.Snapshotter).Walk(ctx, walk, owned))
}

// whyOrphan says why something is an orphan; "" if it may belong to a task after all. What is of another agent, which may
// be about to start its own plugin again, has a living allocation below a directory that this one has never seen.
func (d *Driver) whyOrphan(o orphan, before time.Time) string {
	dir := o.labels[naming.AllocDir]
	switch {
	case dir == "" || o.made.After(before):
		return ""
	case d.agents.owns(dir):
		return "no task of this agent uses it"
	case isGone(dir):
		return "the directory of its allocation is gone"
	}
	return ""
}

// isGone says whether an allocation's directory was removed. Where the one above it is missing too, a file system may not
// be mounted.
func isGone(dir string) bool {
	_, errRoot := os.Stat(filepath.Dir(dir))
	_, err := os.Stat(dir)
	return errRoot == nil && errors.Is(err, os.ErrNotExist)
}

// removeOrphan removes an orphan unless its task is being started, and says whether it did.
func (d *Driver) removeOrphan(ctx context.Context, o orphan, why string) bool {
	ctx, end, busy := d.starts.tryBegin(ctx, startKey(o.labels[naming.AllocID], o.labels[naming.Task]))
	if busy != nil {
		return false
	}
	defer end()
	// A task's lease is of no use once it runs.
	if o.kind != kindLease && d.tasks.HasContainer(o.id) {
		return false
	}
	logger := d.logger.With(o.kind, o.id, "task_id", o.labels[naming.TaskID], "made", o.made, "why", why)
	if d.config.GC.DanglingContainers.DryRun {
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

// listenSlack is by how much an agent that starts may ask about its tasks before it listens for fingerprints.
const listenSlack = time.Second

// dropLostTasks destroys tasks that Nomad does not know: an agent that dies before it has written down the handle of a
// task leaves one that nobody will ever ask about. It takes an agent that has been there for grace without a word about
// the task; while none is there, tasks run on.
func (d *Driver) dropLostTasks(grace time.Duration) {
	since, ok := d.agents.present()
	if !ok || time.Since(since) < grace {
		return
	}
	for _, h := range d.tasks.All() {
		if !h.NotQueriedSince(since.Add(-listenSlack)) {
			continue
		}
		logger := d.logger.With("task_id", h.Config.ID, "container", h.State.ContainerID, "agent_since", since)
		if d.config.GC.DanglingContainers.DryRun {
			logger.Info("the agent does not know this task; dry_run keeps it")
			continue
		}
		logger.Info("destroying a task that the agent does not know")
		if err := d.DestroyTask(h.Config.ID, true); err != nil {
			logger.Warn("a task that the agent does not know could not be destroyed", "error", err)
		}
	}
}

// removeStalePipes removes the named pipes of executed commands whose caller was an earlier plugin process.
func (d *Driver) removeStalePipes() (removed []string) {
	root := d.plugin.ExecDir
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil // No command was ever executed.
	}
	for _, entry := range entries {
		dir := filepath.Join(root, entry.Name())
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || !info.ModTime().Before(d.began) || isRead(dir) {
			continue
		}
		if d.config.GC.DanglingContainers.DryRun {
			d.logger.Info("nobody reads these pipes; dry_run keeps them", "directory", dir)
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			d.logger.Warn("stale pipes could not be removed", "directory", dir, "error", err)
			continue
		}
		d.logger.Info("removed the pipes of a command whose caller is gone", "directory", dir)
		removed = append(removed, "pipes "+dir)
	}
	return removed
}

// isRead says whether any process has a pipe in dir open for reading: another plugin on this machine, or the shim of
// a command that still runs.
func isRead(dir string) bool {
	pipes, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return true
	}
	for _, pipe := range pipes {
		fd, err := unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return true
		}
	}
	return false
}
