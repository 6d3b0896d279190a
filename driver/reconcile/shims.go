package reconcile

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// endEmptyShims ends shims of this containerd and namespace that have no container and no process, of which containerd
// does not know.
func (r *Reconciler) endEmptyShims(ctx context.Context, before time.Time) (removed []string) {
	shims, err := r.Client.Shims()
	if err != nil {
		r.Logger.Warn("cannot list processes to find shims without a container; trying again later", "error", err)
	}
	for _, shim := range shims {
		p, id := shim.Process, shim.ContainerID
		if p.StartedBefore(before) && r.Agents.ownsAlloc(allocOf(id)) && r.shimIsEmpty(ctx, p, id) && r.endShim(p, id) {
			removed = append(removed, "shim "+id)
		}
	}
	return removed
}

// shimIsEmpty reports whether containerd has no container of the shim's, and the shim no process. A container's record is
// there before its shim, and as long as its processes.
func (r *Reconciler) shimIsEmpty(ctx context.Context, p proc.ID, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	_, err := r.Client.ContainerService().Get(ctx, id)
	return errdefs.IsNotFound(err) && !p.HasChildren()
}

func (r *Reconciler) endShim(p proc.ID, id string) bool {
	if r.DryRun {
		r.Logger.Info("this shim has no container; dry_run keeps it", "pid", p.PID, "container", id)
		return false
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		r.Logger.Warn("a shim without a container could not be ended; trying again later", "container", id, "error", err)
		return false
	}
	r.Logger.Info("ended a shim without a container", "pid", p.PID, "container", id)
	return true
}
