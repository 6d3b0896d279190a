package turns

import (
	"slices"
	"time"
)

// Partner is a claim on another GPU that programs use together with one on this GPU.
type Partner struct {
	GPU   *GPU
	Claim string
}

type partner struct {
	gpu   *GPU
	claim *claim
}

// Link sets the partners of a claim, which has its turns at the same time as they have theirs, where shares allow it. Each of them
// has to be linked as well, and all GPUs can have actions after any event then.
func (g *GPU) Link(now time.Duration, id string, partners []Partner) {
	g.advance(now)
	c := g.claims[id]
	if c == nil {
		return
	}
	c.partners = nil
	for _, p := range partners {
		c.partners = append(c.partners, partner{p.GPU, p.GPU.claim(p.Claim)})
	}
	g.linked = slices.ContainsFunc(g.list, func(c *claim) bool { return len(c.partners) > 0 })
	g.step()
}

// stepTogether makes the changes that are due on this GPU, and on those whose turns depend on it.
func (g *GPU) stepTogether() {
	all := g.together()
	for _, x := range all {
		x.advance(g.now + g.skipped)
		x.throttle()
	}
	for range 8 * len(all) {
		changed := false
		for _, x := range all {
			x.call()
			changed = x.change() || changed
		}
		if !changed {
			return
		}
	}
}

// together returns this GPU, those on which its claims have partners, and theirs.
func (g *GPU) together() []*GPU {
	all := []*GPU{g}
	for i := 0; i < len(all); i++ {
		for _, c := range all[i].list {
			for _, p := range c.partners {
				if !slices.Contains(all, p.gpu) {
					all = append(all, p.gpu)
				}
			}
		}
	}
	return all
}

// holds reports whether the claim has a turn that was not revoked.
func (p partner) holds() bool { return p.claim.joined() && p.claim.state != Closed }

// comes reports whether the claim is about to have a turn.
func (p partner) comes() bool { return p.claim.called && p.claim.eligible() }

// needed reports whether the claim is to have its turn together with its partners: it waits for one, or used its last.
func (p partner) needed() bool {
	c := p.claim
	return c.joined() && !c.straggles && (c.wants || c.used)
}

// want has the claim wait for a turn, although none of its threads may be at its gate yet.
func (p partner) want() {
	if c := p.claim; !c.wants {
		c.wants, c.waits, c.paused, c.soon = true, p.gpu.now, 0, 0
	}
}

// wantTogether has the partners of a claim that waits for a turn wait for theirs, so that they are due to all at the same time.
func (g *GPU) wantTogether(c *claim) {
	for _, p := range c.partners {
		p.gpu.advance(g.now + g.skipped)
		if p.needed() && !p.holds() {
			p.want()
		}
	}
}

// ready reports whether a claim can have a turn now, since its partners can have theirs. It waits for them until it is owed a turn
// more than what they wait for: then it has its share all the same, and another turn when they have theirs.
func (g *GPU) ready(c *claim) bool {
	if c.called {
		return !g.early(c)
	}
	for _, p := range c.partners {
		if !p.needed() || p.gpu.admits(p.claim) {
			continue
		}
		most := g.oneTurn(c)
		if h := p.gpu.holder; h != nil {
			most += float64(h.usual)
		}
		if c.credit <= most {
			return false
		}
	}
	return true
}

// admits reports whether the next turn may be the claim's, although another may be due more: it owes nothing. A holder with
// partners has its turn at the same time as they have theirs, and goes before.
func (g *GPU) admits(c *claim) bool {
	h, first := g.holder, g.waiting(c)
	switch {
	case c.state != Closed || c.called:
		return true
	case c.throttled || c.tail || g.called(c) != nil,
		first != nil && first.part.Class > c.part.Class && !g.isAtFloor(c):
		return false
	case h == nil || g.draining:
		return c.credit >= 0 || first == nil
	case g.resting > 0 || h.part.Class < c.part.Class:
		return true
	case h.part.Class > c.part.Class:
		return g.isAtFloor(c)
	case g.now < g.atLeast:
		return false
	case len(h.partners) > 0:
		return g.now >= g.granted+g.shortest(h) && c.due() > h.due()
	}
	return c.credit >= 0
}

// reserve calls a claim that is about to have a turn, and its partners that may have one at the same time.
func (g *GPU) reserve(c *claim) {
	if c == nil || len(c.partners) == 0 {
		return
	}
	c.called = true
	for _, p := range c.partners {
		if p.needed() && !p.holds() && p.gpu.admits(p.claim) {
			p.want()
			p.claim.called = true
		}
	}
}

// call calls the claims that wait for a turn while a partner has one that will end.
func (g *GPU) call() {
	metered := func(p partner) bool { return p.claim.state == Metered }
	for _, c := range g.list {
		if c.eligible() && !c.called && slices.ContainsFunc(c.partners, metered) && g.admits(c) {
			c.called = true
		}
	}
}

// called returns the claim beside one that was called, and whose turn can begin; nil if there is none.
func (g *GPU) called(h *claim) *claim {
	for _, c := range g.list {
		if c != h && c.called && c.eligible() && !g.early(c) {
			return c
		}
	}
	return nil
}

// early reports whether a claim would have its turn long before a partner that was called, too: the GPU of that has longer work to
// end than this one.
func (g *GPU) early(c *claim) bool {
	least := g.round() / 4
	if g.holder != nil {
		least += g.holder.usual
	}
	return slices.ContainsFunc(c.partners, func(p partner) bool {
		return p.comes() && p.gpu.holder != nil && p.gpu.holder.usual > least
	})
}

// awaits reports whether a claim that is idle in its turn waits for that of a partner.
func (c *claim) awaits() bool { return slices.ContainsFunc(c.partners, partner.comes) }

// met has the partners that were idle until a claim's turn say whether they still are: the number of their turn is another one.
func (c *claim) met() {
	for _, p := range c.partners {
		if g := p.gpu; p.claim == g.holder && !g.draining && g.resting > 0 && !p.claim.awaits() {
			g.turn++
			g.resting, p.claim.turn = 0, g.turn
			g.set(p.claim, Metered)
		}
	}
}

// endTogether revokes the turns of a claim's partners.
func (c *claim) endTogether() {
	for _, p := range c.partners {
		if g := p.gpu; p.claim == g.holder && !g.draining && p.claim.state == Metered {
			g.revoke(p.claim)
		}
	}
}
