package reconcile

import (
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/driver/cgroup"
)

// What containerd and runtimes leave outside containerd's database when they are killed during a start or a removal are shims
// without a container (shims.go) and cgroups without a process. They are removed where the allocation in their name is the
// agent's, and they are older than the grace, or have been empty for longer.

// emptyCgroups are the cgroups of the agent's allocations in which the reconciler found no process, and since when: the
// kernel does not report when one was made. The zero value is ready.
type emptyCgroups struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// removeStaleCgroups removes the cgroups of ended tasks from the hierarchies of cgroup v1, in which the runtime makes and
// removes them. On v2 Nomad does so itself.
func (r *Reconciler) removeStaleCgroups(grace time.Duration) (removed []string) {
	if cgroup.Unified() {
		return nil
	}
	r.empty.mu.Lock()
	defer r.empty.mu.Unlock()
	now, since := time.Now(), map[string]time.Time{}
	for _, scope := range r.Agents.cgroups() {
		if !r.cgroupIsEmpty(scope) {
			continue
		}
		first, known := r.empty.since[scope]
		if !known {
			first = now
		}
		since[scope] = first
		if now.Sub(first) >= grace && r.removeStaleCgroup(scope) {
			removed = append(removed, "cgroup "+scope)
		}
	}
	r.empty.since = since
	return removed
}

// cgroupIsEmpty reports whether no hierarchy has a process in the cgroup, and no task is known that has it. A process may be
// in another place in one hierarchy, but not in all of them.
func (r *Reconciler) cgroupIsEmpty(scope string) bool {
	for _, h := range r.Tasks.All() {
		if cgroup.Path(h.Config, false) == scope || h.State.Cgroup == scope {
			return false
		}
	}
	dirs, err := filepath.Glob(filepath.Join(cgroup.Root, "*", scope))
	if err != nil {
		return false
	}
	for _, dir := range dirs {
		if !cgroup.IsEmpty(dir) {
			return false
		}
	}
	return true
}

// removeStaleCgroup removes the cgroup unless its task is being started, and reports whether it did. The kernel refuses if a
// process is in it by now.
func (r *Reconciler) removeStaleCgroup(scope string) bool {
	name := filepath.Base(scope)
	_, release, ok := r.HoldStart(r.Client.Context(), allocOf(name), name[allocIDLength+1:])
	if !ok {
		return false
	}
	defer release()
	dirs, err := filepath.Glob(filepath.Join(cgroup.Root, "*", scope))
	freezer := filepath.Join(cgroup.Root, cgroup.Freezer, scope)
	if err != nil || !slices.ContainsFunc(dirs, func(dir string) bool { return dir != freezer }) {
		return false // Nomad makes that of the freezer before a task starts.
	}
	if r.DryRun {
		r.Logger.Info("no process is in this cgroup; dry_run keeps it", "cgroup", scope)
		return false
	}
	for _, dir := range dirs {
		if err := cgroup.Remove(dir); err != nil {
			r.Logger.Warn("the cgroup of an ended task could not be removed; trying again later", "error", err)
			return false
		}
	}
	r.Logger.Info("removed the cgroup of an ended task", "cgroup", scope)
	return true
}
