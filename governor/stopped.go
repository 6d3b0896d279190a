package governor

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/governor/turns"
)

// mostLooks is how many processes of a claim are looked at in a beat at most: each look reads files, and all claims wait for that.
const mostLooks = 32

// checkStopped finds out which processes are stopped: of those that a turn waits for, and of those that were stopped before.
func (n *node) checkStopped(now time.Duration) {
	for _, g := range n.gpus {
		n.checkLate(now, g)
	}
	n.apply()
	var stopped []*peer
	for _, p := range n.peers {
		if p.stopped {
			stopped = append(stopped, p)
		}
	}
	n.look(now, stopped, func(p *peer, stopped bool) bool {
		if !stopped {
			n.runs(now, p)
		}
		return true
	})
}

// checkLate finds out whether the processes that a turn waits for are stopped, by a signal or in a frozen cgroup. One that is not
// keeps the turn alone, so the others of its claim are looked at when that has drained, or at the next beats.
func (n *node) checkLate(now time.Duration, g *turns.GPU) {
	var late []*peer
	for _, process := range g.Late(now) {
		if c := n.processes[process]; c != nil && !c.peer.stopped {
			late = append(late, c.peer)
		}
	}
	n.look(now, late, func(p *peer, stopped bool) bool {
		if stopped {
			p.stopped = true
			n.tellStopped(now, p)
		}
		return stopped
	})
}

// look calls a function with processes, and whether each is stopped, until it returns false or enough of the claim's processes were
// looked at. Those that were not looked at for longest are first.
func (n *node) look(now time.Duration, at []*peer, found func(p *peer, stopped bool) (more bool)) {
	slices.SortFunc(at, func(p, o *peer) int { return cmp.Or(cmp.Compare(p.looked, o.looked), cmp.Compare(p.id.PID, o.id.PID)) })
	looks := make(map[*member]int)
	frozen := make(frozenCgroups)
	for _, p := range at {
		of := p.conns[0].of
		if looks[of]++; looks[of] > mostLooks {
			continue
		}
		p.looked = now
		if !found(p, isStopped(p.id.PID, frozen)) {
			looks[of] = mostLooks
		}
	}
}

// runs notes that a process is not stopped any more.
func (n *node) runs(now time.Duration, p *peer) {
	if p.stopped {
		p.stopped = false
		n.tellStopped(now, p)
	}
}

// tellStopped makes known to the state machines whether a process is stopped.
func (n *node) tellStopped(now time.Duration, p *peer) {
	for _, c := range p.conns {
		if c.process != 0 {
			n.gpu(c.of.GPU.UUID).Stopped(now, c.of.ID, c.process, p.stopped)
		}
	}
	n.apply()
}

// isStopped reports whether a process is stopped.
func isStopped(pid int, frozen frozenCgroups) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && len(stat) > i+2 {
		if state := stat[i+2]; state == 'T' || state == 't' {
			return true
		}
	}
	return frozen.has(pid)
}

// frozenCgroups has the files of cgroups that were read, and whether each says that its cgroup is frozen. The processes of a claim
// have most of them in common.
type frozenCgroups map[string]bool

// has reports whether a process is in a frozen cgroup.
func (f frozenCgroups) has(pid int) bool {
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(cgroups)) { // hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[1] == "" && f.says(filepath.Join("/sys/fs/cgroup", parts[2], "cgroup.events"), "frozen 1"),
			parts[1] == "" && f.says(filepath.Join("/sys/fs/cgroup/unified", parts[2], "cgroup.events"), "frozen 1"),
			parts[1] == "freezer" && f.says(filepath.Join("/sys/fs/cgroup/freezer", parts[2], "freezer.state"), "FROZEN"):
			return true
		}
	}
	return false
}

func (f frozenCgroups) says(path, line string) bool {
	frozen, read := f[path]
	if !read {
		text, err := os.ReadFile(path)
		frozen = err == nil && strings.Contains("\n"+string(text)+"\n", "\n"+line+"\n")
		f[path] = frozen
	}
	return frozen
}
