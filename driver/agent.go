package driver

import (
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/cgroup"
)

// agents is what this plugin knows of the Nomad agent that it serves. Agents come and go: a plugin outlives its agent,
// and the next one takes it over. The zero value is ready.
type agents struct {
	mu sync.Mutex
	// roots are the directories below which the agent keeps those of its allocations. They tell its containers from
	// those of another agent that uses the same containerd.
	roots map[string]bool
	// cgroupParents are the cgroups below which tasks have theirs on cgroup v1, relative to the root of the hierarchies.
	cgroupParents map[string]bool
	// listening is how many calls listen for fingerprints, which an agent does as long as it lives; since is when the
	// first of them began.
	listening int
	since     time.Time
}

// see learns from a task that the agent hands over.
func (a *agents) see(cfg *drivers.TaskConfig) {
	if cfg.AllocDir == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.roots == nil {
		a.roots, a.cgroupParents = map[string]bool{}, map[string]bool{}
	}
	a.roots[filepath.Dir(cfg.AllocDir)] = true
	if cfg.AllocID != "" {
		a.cgroupParents[filepath.Dir(cgroup.Path(cfg, false))] = true
	}
}

// owns says whether the directory of an allocation is among those of this agent.
func (a *agents) owns(allocDir string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.roots[filepath.Dir(allocDir)]
}

// listen notes that an agent listens, until the function that it returns is called.
func (a *agents) listen() (end func()) {
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

// present returns since when an agent has been there without a break, if one is there now.
func (a *agents) present() (since time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.since, a.listening > 0
}
