package governor

import (
	"fmt"
	"os"
	"slices"
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
		switch {
		case len(a.Overran) > 0:
			n.logOverrun(m, a)
		case len(a.Late) > 0:
			for _, process := range a.Late {
				if c := n.processes[process]; c != nil {
					c.ask(a)
				}
			}
		case len(a.GivenUp) > 0:
			n.logGivenUp(m, a)
		case a.Starves:
			n.logger.Error("a claim that was due a turn had none for a long time, and has the next: please report this",
				"claim", m.ID, "gpu", m.GPU.UUID)
		default:
			m.set(a)
		}
	}
}

// set changes what the pages of a claim's processes say.
func (m *member) set(a turns.Action) {
	for _, c := range m.conns {
		if c.process != 0 && (a.State != turns.Metered || !slices.Contains(a.Silent, c.process)) {
			c.set(a)
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
	if !c.welcome || !c.send(protocol.Message{Kind: kind, GPU: uint32(c.gpu), Turn: a.Turn}, -1) {
		c.missed = true
	}
}

// ask asks a process whose turn has ended whether it runs.
func (c *conn) ask(a turns.Action) {
	c.send(protocol.Message{Kind: protocol.Revoke, GPU: uint32(c.gpu), Turn: a.Turn, Flags: protocol.Asks}, -1)
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
	n.logger.Warn("a turn has not ended by its deadline: the next one has begun, and both claims are charged for what their processes have", "claim", m.ID,
		"gpu", m.GPU.UUID, "processes", claim.ListNames(n.names(a.Overran)))
}

// logGivenUp names the processes that have not answered.
func (n *node) logGivenUp(m *member, a turns.Action) {
	now := monotonic()
	if m.gaveUp > 0 && now-m.gaveUp < overrunsLogged {
		return
	}
	m.gaveUp = now
	n.logger.Warn("processes have not answered after their turn: they are stopped or hang, and have no turns until they do",
		"claim", m.ID, "gpu", m.GPU.UUID, "processes", claim.ListNames(n.names(a.GivenUp)))
}

// names returns the process IDs and the names of processes.
func (n *node) names(of []turns.Process) (names []string) {
	for _, process := range of {
		if c := n.processes[process]; c != nil {
			names = append(names, describe(c.pid, c.peer.name))
		}
	}
	return names
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
