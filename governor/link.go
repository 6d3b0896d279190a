package governor

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/governor/turns"
)

// pair counts that a process has joined one claim more, or by -1 one less, and makes known to the state machines which claims
// processes use together where that has changed: a process has joined a claim on each of its GPUs.
func (n *node) pair(now time.Duration, c *conn, by int) {
	for _, o := range c.peer.conns {
		if o == c || o.process == 0 || o.of.GPU.UUID == c.of.GPU.UUID {
			continue
		}
		was := c.of.partners[o.of]
		c.of.count(o.of, was+by)
		o.of.count(c.of, was+by)
		if was == 0 || was+by == 0 {
			n.link(now, o.of)
			n.link(now, c.of)
		}
	}
}

// count notes how many processes have joined another claim, too.
func (m *member) count(other *member, processes int) {
	if m.partners == nil {
		m.partners = make(map[*member]int)
	}
	if m.partners[other] = processes; processes == 0 {
		delete(m.partners, other)
	}
}

// link makes a claim's partners known.
func (n *node) link(now time.Duration, m *member) {
	var partners []turns.Partner
	for _, o := range slices.SortedFunc(maps.Keys(m.partners), func(a, b *member) int { return cmp.Compare(a.ID, b.ID) }) {
		partners = append(partners, turns.Partner{GPU: n.gpu(o.GPU.UUID), Claim: o.ID})
	}
	n.gpu(m.GPU.UUID).Link(now, m.ID, partners)
}
