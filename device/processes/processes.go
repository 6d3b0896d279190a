// Package processes finds out which processes on a GPU belong to the containers of claims. It reads /proc only.
package processes

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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
	self info
	// executable is this process's.
	executable string

	inits []info
	// claims are those of the containers, by the index of inits.
	claims []*claim.Claim
}

// info is what /proc says of a process.
type info struct {
	pid          int
	parent       int
	pidNamespace string
	// cgroups are the process's, by the ID of their hierarchy.
	cgroups map[int]string
	// lineage is the process, its parent and so on; nil as long as nobody needed it.
	lineage []int
}

// Of returns the containers of claims, each of which must have one. To a command under `tranche run` belongs what descends from
// it: it shares its cgroups with the rest of its session.
func Of(claims []*claim.Claim) *Containers {
	self, _ := read(os.Getpid())
	c := &Containers{self: self, executable: executable(os.Getpid())}
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
	kind, _ := c.Owner(pid)
	return kind
}

// Claims returns the claims in whose container a process is.
func (c *Containers) Claims(pid int) []*claim.Claim {
	_, claims := c.Owner(pid)
	return claims
}

// Owner returns to whom a process belongs, and the claims in whose container it is, in the order that Of got.
func (c *Containers) Owner(pid int) (Kind, []*claim.Claim) {
	process, ok := read(pid)
	if !ok {
		return Ended, nil
	}
	claims := c.of(&process)
	switch {
	case len(claims) > 0:
		return Claimed, claims
	case c.executable != "" && executable(pid) == c.executable:
		return Own, nil
	}
	return Unmanaged, nil
}

// of returns the claims in whose container a process is. Its cgroups decide: a PID namespace may belong to several containers.
// A process that has left the container's cgroups is in it if it descends from its init process, or else by its PID namespace.
func (c *Containers) of(process *info) []*claim.Claim {
	for _, inside := range []func(process, init *info) bool{c.sharesCgroups, (*info).descendsFrom, c.sharesPIDNamespace} {
		var claims []*claim.Claim
		for i := range c.inits {
			if inside(process, &c.inits[i]) {
				claims = append(claims, c.claims[i])
			}
		}
		if len(claims) > 0 {
			return claims
		}
	}
	return nil
}

// sharesPIDNamespace reports whether a process is in the PID namespace of an init process, and the plugin is not.
func (c *Containers) sharesPIDNamespace(process, init *info) bool {
	return process.pidNamespace != "" && process.pidNamespace == init.pidNamespace && init.pidNamespace != c.self.pidNamespace
}

// descendsFrom reports whether a process is an init process or descends from it.
func (p *info) descendsFrom(init *info) bool {
	if p.lineage == nil {
		p.lineage = []int{p.pid}
		var err error
		for parent := p.parent; parent > 0 && err == nil; parent, err = proc.Parent(parent) {
			p.lineage = append(p.lineage, parent)
		}
	}
	return slices.Contains(p.lineage, init.pid)
}

// sharesCgroups reports whether a process is in the cgroups of an init process in all hierarchies, but for those that the plugin
// is in. With cgroup v1, a runtime may leave the containers in one cgroup that they have in common, in a hierarchy that it does
// not know.
func (c *Containers) sharesCgroups(process, init *info) bool {
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
	parent, err := proc.Parent(pid)
	if err != nil {
		return info{}, false
	}
	namespace, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	groups, err := proc.Cgroups(pid)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return info{}, false
	}
	return info{pid: pid, parent: parent, pidNamespace: namespace, cgroups: groups}, true
}

// executable returns the path of a process's program; empty if that is not known.
func executable(pid int) string {
	path, _ := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe")
	return path
}
