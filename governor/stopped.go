package governor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/governor/turns"
)

// checkLate finds out which of the processes that a turn waits for are stopped, by a signal or in a frozen cgroup.
func (n *node) checkLate(now time.Duration, g *turns.GPU) {
	for _, process := range g.Late(now) {
		if c := n.processes[process]; c != nil {
			g.Stopped(now, c.of.ID, process, isStopped(c.pid))
			c.peer.stopped = true // to be looked at again, whatever it was
		}
	}
}

// checkStopped finds out which processes are stopped: of those that a turn waits for, and of those that were stopped before.
func (n *node) checkStopped(now time.Duration) {
	for _, g := range n.gpus {
		n.checkLate(now, g)
	}
	n.apply()
	for _, p := range n.peers {
		if p.stopped && !isStopped(p.id.PID) {
			p.stopped = false
			for _, c := range p.conns {
				if c.process != 0 {
					n.gpu(c.of.GPU.UUID).Stopped(now, c.of.ID, c.process, false)
					n.apply()
				}
			}
		}
	}
}

// isStopped reports whether a process is stopped.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && len(stat) > i+2 {
		if state := stat[i+2]; state == 'T' || state == 't' {
			return true
		}
	}
	return isFrozen(pid)
}

// isFrozen reports whether a process is in a frozen cgroup.
func isFrozen(pid int) bool {
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(cgroups)) { // hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[1] == "" && fileHas(filepath.Join("/sys/fs/cgroup", parts[2], "cgroup.events"), "frozen 1"),
			parts[1] == "" && fileHas(filepath.Join("/sys/fs/cgroup/unified", parts[2], "cgroup.events"), "frozen 1"),
			parts[1] == "freezer" && fileHas(filepath.Join("/sys/fs/cgroup/freezer", parts[2], "freezer.state"), "FROZEN"):
			return true
		}
	}
	return false
}

func fileHas(path, line string) bool {
	text, err := os.ReadFile(path)
	return err == nil && strings.Contains("\n"+string(text)+"\n", "\n"+line+"\n")
}

// nameOf returns the name of a process's program, for people.
func nameOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(name))
}
