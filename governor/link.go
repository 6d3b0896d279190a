package governor

import (
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/governor/turns"
)

// link makes known to the state machines which claims processes use together, after one has joined or left that has or had these
// connections: a process has joined a claim on each of its GPUs.
func (n *node) link(now time.Duration, conns []*conn) {
	if len(conns) < 2 {
		return // it has one GPU
	}
	for _, c := range conns {
		var partners []turns.Partner
		for _, m := range c.of.partners() {
			partners = append(partners, turns.Partner{GPU: n.gpu(m.GPU.UUID), Claim: m.ID})
		}
		n.gpu(c.of.GPU.UUID).Link(now, c.of.ID, partners)
	}
}

// partners returns the claims on other GPUs that processes of this claim have joined.
func (m *member) partners() (found []*member) {
	for _, c := range m.conns {
		if c.process == 0 {
			continue
		}
		for _, o := range c.peer.conns {
			if o.process != 0 && o.of.GPU.UUID != m.GPU.UUID && !slices.Contains(found, o.of) {
				found = append(found, o.of)
			}
		}
	}
	return found
}
