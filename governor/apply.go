package governor

import (
	"fmt"
	"os"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/page"
	"github.com/tranche-gpu/tranche/governor/protocol"
	"github.com/tranche-gpu/tranche/governor/turns"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// apply makes the state machines' actions known to the processes. An event on one GPU can end a turn on another, too.
func (n *node) apply() {
	for _, g := range n.gpus {
		n.applyAll(g.Actions())
	}
}

func (n *node) applyAll(actions []turns.Action) {
	for _, a := range actions {
		m := n.claims[a.Claim]
		if m == nil {
			continue
		}
		if len(a.Overran) > 0 {
			n.logOverrun(m, a)
			continue
		}
		for _, c := range m.conns {
			if c.process != 0 {
				c.set(a)
			}
		}
	}
}

// set changes what a process's page says, and sends it word of that.
func (c *conn) set(a turns.Action) {
	was := c.peer.states[c.gpu]
	c.write(a)
	if a.State != was || a.State == turns.Metered { // a turn that was given another number goes on
		c.notify(a)
	}
}

func (c *conn) write(a turns.Action) {
	if a.State != turns.Open {
		c.peer.page.Beat(uint64(monotonic()))
		if !c.peer.closed() {
			c.node.beatDue = 0
		}
	}
	c.peer.states[c.gpu] = a.State
	c.peer.page.Set(c.gpu, page.GPU{
		State: uint32(a.State), Turn: a.Turn, MeterNS: uint64(a.Meter), SwitchNS: uint64(c.node.gpu(c.of.GPU.UUID).Switch()),
	})
}

func (c *conn) notify(a turns.Action) {
	kind := protocol.Grant
	if a.State == turns.Closed {
		kind = protocol.Revoke
	}
	if !c.send(protocol.Message{Kind: kind, GPU: uint32(c.gpu), Turn: a.Turn}, -1) {
		c.missed = true
	}
}

// show writes the state of a claim to the page of a process that has just joined.
func (c *conn) show() {
	if a, ok := c.now(); ok {
		c.write(a)
	}
}

// tell sends the state of a claim to a process that has missed a message.
func (c *conn) tell() {
	if a, ok := c.now(); ok {
		c.notify(a)
	}
}

func (c *conn) now() (turns.Action, bool) {
	s, ok := c.node.gpu(c.of.GPU.UUID).Status(monotonic(), c.of.ID)
	return turns.Action{Claim: c.of.ID, State: s.State, Turn: s.Turn, Meter: s.Meter}, ok
}

// logOverrun names the processes that have not drained by their deadline.
func (n *node) logOverrun(m *member, a turns.Action) {
	now := monotonic()
	if m.overran > 0 && now-m.overran < overrunsLogged {
		return
	}
	m.overran = now
	var names []string
	for _, process := range a.Overran {
		if c := n.processes[process]; c != nil {
			names = append(names, describe(c.pid, c.peer.name))
		}
	}
	n.logger.Warn("a turn has not ended by its deadline: the next one has begun, and both claims are charged", "claim", m.ID,
		"gpu", m.GPU.UUID, "processes", claim.ListNames(names))
}

// nameOf returns the name of a process's program, for people.
func nameOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(name))
}

// describe returns a process for a line of the log: a program can name itself as it likes.
func describe(pid int, name string) string { return fmt.Sprintf("%d (%s)", pid, printable.Text(name)) }
