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

// Containers are the processes of some claims' containers.
type Containers struct {
	self       footing
	containers []footing
	claims     []*claim.Claim // those of the containers
}

// footing is what is known of a process from /proc.
type footing struct {
	pid        int
	parent     int
	executable string
	pidSpace   string
	// cgroups are the process's, by the ID of their hierarchy.
	cgroups map[int]string
}

// Of returns the containers of claims, each of which has to have one.
func Of(claims []*claim.Claim) *Containers {
	self, _ := footingOf(os.Getpid())
	m := &Containers{self: self}
	for _, c := range claims {
		if init, ok := footingOf(c.Container.InitPID); ok {
			m.containers, m.claims = append(m.containers, init), append(m.claims, c)
		}
	}
	return m
}

// Kind returns to whom a process belongs.
func (m *Containers) Kind(pid int) Kind {
	process, ok := footingOf(pid)
	switch {
	case !ok:
		return Ended
	case slices.ContainsFunc(m.containers, func(init footing) bool { return m.inside(process, init) }):
		return Claimed
	case process.executable != "" && process.executable == m.self.executable:
		return Own
	}
	return Unmanaged
}

// Claims returns the claims in whose container a process is.
func (m *Containers) Claims(pid int) []*claim.Claim {
	var claims []*claim.Claim
	process, ok := footingOf(pid)
	for i, init := range m.containers {
		if ok && m.inside(process, init) {
			claims = append(claims, m.claims[i])
		}
	}
	return claims
}

// inside tells whether a process is in the container of an init process: by its
// PID namespace or its cgroups, which those that were put into the container
// later share as well, or because it descends from it. What the plugin shares,
// too, is not the container's.
func (m *Containers) inside(process, init footing) bool {
	if process.pidSpace != "" && process.pidSpace == init.pidSpace && init.pidSpace != m.self.pidSpace {
		return true
	}
	for hierarchy, group := range init.cgroups {
		if !below(m.self.cgroups[hierarchy], group) && below(process.cgroups[hierarchy], group) {
			return true
		}
	}
	for ok := true; ok; process, ok = footingOf(process.parent) {
		if process.pid == init.pid {
			return true
		}
	}
	return false
}

// below tells whether a cgroup is another one or in it.
func below(group, in string) bool {
	return group != "" && (group == in || strings.HasPrefix(group, strings.TrimSuffix(in, "/")+"/"))
}

// footingOf reads what /proc tells; not ok if the process has ended.
func footingOf(pid int) (footing, bool) {
	f := footing{pid: pid, cgroups: make(map[int]string)}
	var err error
	if f.parent, err = proc.Parent(pid); err != nil {
		return footing{}, false
	}
	dir := path.Join("/proc", strconv.Itoa(pid))
	f.executable, _ = os.Readlink(path.Join(dir, "exe"))
	f.pidSpace, _ = os.Readlink(path.Join(dir, "ns/pid"))
	process, err := procfs.NewProc(pid)
	if err != nil {
		return footing{}, false
	}
	groups, _ := process.Cgroups()
	for _, group := range groups {
		f.cgroups[group.HierarchyID] = group.Path
	}
	return f, true
}
