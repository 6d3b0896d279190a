// Package processes finds out which processes on a GPU belong to the containers of claims. It reads /proc only.
package processes

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// Kind says to whom a process on a GPU belongs.
type Kind int

// The kinds of processes.
const (
	Unmanaged Kind = iota // it belongs to no claim
	Claimed               // it is in the container of a claim
	Own                   // it is the plugin's own, which measures the memory of a context
	Ended                 // it has ended in the meantime
)

// Containers are the containers of some claims.
type Containers struct {
	self  info
	inits []info
	// claims are those of the containers, by the index of inits.
	claims []*claim.Claim
}

// info is what /proc says of a process.
type info struct {
	pid          int
	parent       int
	executable   string
	pidNamespace string
	// cgroups are the process's, by the ID of their hierarchy.
	cgroups map[int]string
}

// Of returns the containers of claims, each of which must have one. To a command under `tranche run` belongs what descends from
// it: it shares its cgroups with the rest of its session.
func Of(claims []*claim.Claim) *Containers {
	self, _ := read(os.Getpid())
	c := &Containers{self: self}
	for _, owner := range claims {
		if init, ok := read(owner.Container.InitPID); ok {
			if owner.Owner == claim.OwnerRun {
				init.pidNamespace, init.cgroups = "", nil
			}
			c.inits, c.claims = append(c.inits, init), append(c.claims, owner)
		}
	}
	return c
}

// Kind returns to whom a process belongs.
func (c *Containers) Kind(pid int) Kind {
	process, ok := read(pid)
	switch {
	case !ok:
		return Ended
	case slices.ContainsFunc(c.inits, func(init info) bool { return c.inside(process, init) }):
		return Claimed
	case process.executable != "" && process.executable == c.self.executable:
		return Own
	}
	return Unmanaged
}

// Claims returns the claims in whose container a process is.
func (c *Containers) Claims(pid int) []*claim.Claim {
	var claims []*claim.Claim
	process, ok := read(pid)
	for i, init := range c.inits {
		if ok && c.inside(process, init) {
			claims = append(claims, c.claims[i])
		}
	}
	return claims
}

// inside reports whether a process is in the container of an init process: by its PID namespace or its cgroups, which
// processes that are added to the container later have as well, or because it descends from it. A namespace or cgroup that
// the plugin itself is in does not count.
func (c *Containers) inside(process, init info) bool {
	if process.pidNamespace != "" && process.pidNamespace == init.pidNamespace && init.pidNamespace != c.self.pidNamespace {
		return true
	}
	if c.sharesCgroups(process, init) {
		return true
	}
	for ok := true; ok; process, ok = read(process.parent) {
		if process.pid == init.pid {
			return true
		}
	}
	return false
}

// sharesCgroups reports whether a process is in the cgroups of an init process in all hierarchies. With cgroup v1, a runtime
// may leave the containers in one cgroup that they have in common, in a hierarchy that it does not know.
func (c *Containers) sharesCgroups(process, init info) bool {
	shares := false
	for hierarchy, group := range init.cgroups {
		if below(c.self.cgroups[hierarchy], group) {
			continue
		}
		if !below(process.cgroups[hierarchy], group) {
			return false
		}
		shares = true
	}
	return shares
}

// below reports whether a cgroup is another one or in it.
func below(group, in string) bool {
	return group != "" && (group == in || strings.HasPrefix(group, strings.TrimSuffix(in, "/")+"/"))
}

// read reads /proc; not ok if the process has ended.
func read(pid int) (info, bool) {
	found := info{pid: pid, cgroups: make(map[int]string)}
	var err error
	if found.parent, err = proc.Parent(pid); err != nil {
		return info{}, false
	}
	dir := path.Join("/proc", strconv.Itoa(pid))
	found.executable, _ = os.Readlink(path.Join(dir, "exe"))
	found.pidNamespace, _ = os.Readlink(path.Join(dir, "ns/pid"))
	process, err := procfs.NewProc(pid)
	if err != nil {
		return info{}, false
	}
	groups, _ := process.Cgroups()
	for _, group := range groups {
		found.cgroups[group.HierarchyID] = group.Path
	}
	return found, true
}
