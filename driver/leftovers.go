package driver

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// What containerd and runtimes leave outside containerd's database when they are killed during a start or a
// removal: shims without a container, and cgroups without a process. The reconciler removes them where the allocation in
// their name is this agent's. Whatever has a process is left alone, as is what is younger than the grace, or has been empty
// for less.

// allocIDLength is the length of an allocation's ID, a UUID.
const allocIDLength = 36

var allocID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// allocOf returns the allocation with whose ID a name begins; "" if it does not.
func allocOf(name string) string {
	if len(name) <= allocIDLength || !allocID.MatchString(name[:allocIDLength]) {
		return ""
	}
	return name[:allocIDLength]
}

// removeStaleCgroups removes the cgroups of ended tasks from the hierarchies of cgroup v1, in which the runtime makes and
// removes them. On v2 Nomad does so itself.
func (d *Driver) removeStaleCgroups(grace time.Duration) (removed []string) {
	if cgroup.Unified() {
		return nil
	}
	d.empty.mu.Lock()
	defer d.empty.mu.Unlock()
	now, since := time.Now(), map[string]time.Time{}
	for _, scope := range d.agents.cgroups() {
		if !d.cgroupIsEmpty(scope) {
			continue
		}
		first, known := d.empty.since[scope]
		if !known {
			first = now
		}
		since[scope] = first
		if now.Sub(first) >= grace && d.removeStaleCgroup(scope) {
			removed = append(removed, "cgroup "+scope)
		}
	}
	d.empty.since = since
	return removed
}

// emptyCgroups are the cgroups of this agent's allocations in which the reconciler found no process, and since when: the kernel
// does not say when one was made. The zero value is ready.
type emptyCgroups struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// cgroups are the cgroups below the parents of tasks' whose names are of allocations of this agent, relative to the root of
// the hierarchies.
func (a *agents) cgroups() (paths []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for parent := range a.cgroupParents {
		dirs, _ := filepath.Glob(filepath.Join(cgroup.Root, "*", parent, "*"))
		for _, dir := range dirs {
			name := filepath.Base(dir)
			path := filepath.Join(parent, name)
			if strings.HasPrefix(name, allocOf(name)+".") && a.hasAlloc(allocOf(name)) && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// hasAlloc reports whether the allocation's directory is below one of this agent's. a.mu is held.
func (a *agents) hasAlloc(id string) bool {
	for root := range a.roots {
		if info, err := os.Stat(filepath.Join(root, id)); id != "" && err == nil && info.IsDir() {
			return true
		}
	}
	return false
}

// cgroupIsEmpty reports whether no hierarchy has a process in the cgroup, and no task is known that has it. A process may be
// in another place in one hierarchy, but not in all of them.
func (d *Driver) cgroupIsEmpty(scope string) bool {
	for _, h := range d.tasks.All() {
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

// removeStaleCgroup removes the cgroup unless its task is being started, and reports whether it did. The kernel refuses to
// where a process is in it by now.
func (d *Driver) removeStaleCgroup(scope string) bool {
	name := filepath.Base(scope)
	_, end, busy := d.starts.tryBegin(d.ctx, startKey(allocOf(name), name[allocIDLength+1:]))
	if busy != nil {
		return false
	}
	defer end()
	dirs, err := filepath.Glob(filepath.Join(cgroup.Root, "*", scope))
	freezer := filepath.Join(cgroup.Root, cgroup.Freezer, scope)
	if err != nil || !slices.ContainsFunc(dirs, func(dir string) bool { return dir != freezer }) {
		return false // Nomad makes that of the freezer before a task starts.
	}
	if d.config.GC.DanglingContainers.DryRun {
		d.logger.Info("no process is in this cgroup; dry_run keeps it", "cgroup", scope)
		return false
	}
	for _, dir := range dirs {
		if err := cgroup.Remove(dir); err != nil {
			d.logger.Warn("the cgroup of an ended task could not be removed; trying again later", "error", err)
			return false
		}
	}
	d.logger.Info("removed the cgroup of an ended task", "cgroup", scope)
	return true
}

// endEmptyShims ends shims of this containerd and namespace that have no container and no process, of which containerd
// does not know.
func (d *Driver) endEmptyShims(ctx context.Context, before time.Time) (removed []string) {
	processes, err := procfs.AllProcs()
	if err != nil {
		d.logger.Warn("cannot list processes to find shims without a container; trying again later", "error", err)
	}
	for _, running := range processes {
		p, id, ok := d.shimOf(running)
		if ok && p.StartedBefore(before) && d.agents.ownsAlloc(allocOf(id)) && d.shimIsEmpty(ctx, p, id) && d.endShim(p, id) {
			removed = append(removed, "shim "+id)
		}
	}
	return removed
}

// ownsAlloc is hasAlloc for those who do not hold a.mu.
func (a *agents) ownsAlloc(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hasAlloc(id)
}

// shimIsEmpty reports whether containerd has no container of the shim's, and the shim no process. A container's record is
// there before its shim, and as long as its processes.
func (d *Driver) shimIsEmpty(ctx context.Context, p proc.ID, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	_, err := d.client.ContainerService().Get(ctx, id)
	return errdefs.IsNotFound(err) && !p.HasChildren()
}

func (d *Driver) endShim(p proc.ID, id string) bool {
	if d.config.GC.DanglingContainers.DryRun {
		d.logger.Info("this shim has no container; dry_run keeps it", "pid", p.PID, "container", id)
		return false
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		d.logger.Warn("a shim without a container could not be ended; trying again later", "container", id, "error", err)
		return false
	}
	d.logger.Info("ended a shim without a container", "pid", p.PID, "container", id)
	return true
}

// shimOf returns the process and the container's ID if the process is a shim of this containerd and namespace.
func (d *Driver) shimOf(running procfs.Proc) (p proc.ID, id string, ok bool) {
	args, err := running.CmdLine()
	if err != nil || len(args) == 0 || !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") {
		return proc.ID{}, "", false
	}
	flags := map[string]string{}
	for i := 1; i+1 < len(args); i++ {
		flags[args[i]] = args[i+1]
	}
	if flags["-namespace"] != d.config.Namespace || flags["-address"] != d.config.ContainerdAddress {
		return proc.ID{}, "", false
	}
	p, err = proc.Find(running.PID)
	return p, flags["-id"], err == nil
}
