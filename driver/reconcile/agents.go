package reconcile

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/cgroup"
)

// Agents is what this plugin process knows of the Nomad agents that it has served, one after the other: a plugin may outlive
// its agent, and the next one takes it over. The zero value is ready.
type Agents struct {
	mu sync.Mutex
	// roots are the directories below which the agent keeps those of its allocations. They tell its containers from
	// those of another agent that uses the same containerd.
	roots map[string]bool
	// allocs are those whose tasks the agent has started or recovered here, with when their directory was first found to be
	// gone; zero for one that is there.
	allocs map[string]time.Time
	// cgroupParents are the cgroups below which tasks have theirs on cgroup v1, relative to the root of the hierarchies.
	cgroupParents map[string]bool
	// listening is how many calls listen for fingerprints, which an agent does until it ends; since is when the first of
	// them began.
	listening int
	since     time.Time
}

// NoteTask notes where the agent keeps a task that it has started or recovered.
func (a *Agents) NoteTask(cfg *drivers.TaskConfig) {
	if cfg.AllocDir == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.roots == nil {
		a.roots, a.cgroupParents, a.allocs = map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	}
	a.roots[filepath.Dir(cfg.AllocDir)] = true
	if cfg.AllocID != "" {
		a.cgroupParents[filepath.Dir(cgroup.Path(cfg, false))] = true
		a.allocs[cfg.AllocID] = time.Time{}
	}
}

// owns reports whether the directory of an allocation is below one of the agent's.
func (a *Agents) owns(allocDir string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.roots[filepath.Dir(allocDir)]
}

// NoteListener notes that an agent listens for fingerprints, until the function that it returns is called.
func (a *Agents) NoteListener() (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listening++; a.listening == 1 {
		a.since = time.Now()
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.listening--
	}
}

// present returns since when an agent has listened without a break; ok is false if none does.
func (a *Agents) present() (since time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since, a.listening > 0
}

// cgroups returns the cgroups beside those of tasks whose names begin with an allocation of the agent, relative to the root
// of the hierarchies.
func (a *Agents) cgroups() (paths []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for parent := range a.cgroupParents {
		dirs, _ := filepath.Glob(filepath.Join(cgroup.Root, "*", parent, "*"))
		for _, dir := range dirs {
			name := filepath.Base(dir)
			path := filepath.Join(parent, name)
			if strings.HasPrefix(name, allocOf(name)+".") && a.isTheirs(allocOf(name)) && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// hasDir reports whether the allocation's directory is below one of the agent's. a.mu is held.
func (a *Agents) hasDir(id string) bool {
	for root := range a.roots {
		if info, err := os.Stat(filepath.Join(root, id)); id != "" && err == nil && info.IsDir() {
			return true
		}
	}
	return false
}

// isTheirs reports whether an allocation is the agent's: it has its directory, or has had it. a.mu is held.
func (a *Agents) isTheirs(id string) bool {
	_, known := a.allocs[id]
	return known || a.hasDir(id)
}

// ownsAlloc reports whether an allocation is the agent's.
func (a *Agents) ownsAlloc(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.isTheirs(id)
}

// forgetAllocs drops the allocations whose directory has been gone for longer than grace. What they left is removed by then.
func (a *Agents) forgetAllocs(grace time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for id, gone := range a.allocs {
		switch {
		case a.hasDir(id):
			a.allocs[id] = time.Time{}
		case gone.IsZero():
			a.allocs[id] = now
		case now.Sub(gone) > grace:
			delete(a.allocs, id)
		}
	}
}

// allocIDLength is the length of an allocation's ID, a UUID.
const allocIDLength = 36

var allocID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// allocOf returns the ID of the allocation with which a name begins; "" if it begins otherwise.
func allocOf(name string) string {
	if len(name) <= allocIDLength || !allocID.MatchString(name[:allocIDLength]) {
		return ""
	}
	return name[:allocIDLength]
}
