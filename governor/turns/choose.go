package turns

import (
	"slices"
	"time"
)

// round returns the time in which each claim that wants one has a turn.
func (g *GPU) round() time.Duration {
	joined := 0
	for _, c := range g.list {
		if c.joined() {
			joined++
		}
	}
	return max(shortestRound, time.Duration(float64(joined)*float64(g.Switch())/switchLoss))
}

// share returns a claim's part of the GPU's time among those of its class that want it.
func (g *GPU) share(c *claim) float64 {
	sum := c.weight()
	for _, o := range g.list {
		if o != c && o.part.Class == c.part.Class && g.wanting(o) {
			sum += o.weight()
		}
	}
	return c.weight() / sum
}

// shortest is the shortest turn that is worth its switch.
func (g *GPU) shortest(c *claim) time.Duration {
	return min(20*g.Switch(), time.Duration(g.share(c)*float64(g.round())))
}

// patience is how long a free GPU waits at most for a claim that pauses.
func (g *GPU) patience() time.Duration { return g.round() }

// choose returns the claim to get the next turn; nil if none wants one.
func (g *GPU) choose() *claim {
	if c := g.called(nil); c != nil {
		return c
	}
	best := g.rival(nil)
	if best == nil {
		best = g.waiting(nil)
	}
	low := g.atFloor(best)
	if low == nil || g.isAtFloor(best) && g.outranked(best) {
		return best
	}
	return low
}

// outranked reports whether a higher class wants the GPU.
func (g *GPU) outranked(c *claim) bool {
	return slices.ContainsFunc(g.list, func(o *claim) bool { return o.part.Class > c.part.Class && g.wanting(o) })
}

// before reports whether one claim's turn is before another's.
func (g *GPU) before(c, o *claim) bool {
	if c.part.Class != o.part.Class {
		return c.part.Class > o.part.Class
	}
	return c.due() > o.due()
}

// atFloor returns a claim of a lower class than the next one's whose floor is due; nil if there is none.
func (g *GPU) atFloor(next *claim) *claim {
	var low *claim
	for _, c := range g.list {
		if next != nil && c.part.Class < next.part.Class && c.eligible() && g.isAtFloor(c) &&
			(low == nil || c.below > low.below) {
			low = c
		}
	}
	return low
}

// isAtFloor reports whether a claim has a turn although a higher class wants one.
func (g *GPU) isAtFloor(c *claim) bool {
	straggles := slices.ContainsFunc(g.list, func(o *claim) bool { return o.straggles })
	return c.below >= float64(floorTurn) || g.now-c.waits >= longestWait && g.now >= g.nextFloor && !straggles
}

// begin begins the next turn, if a claim wants one and the GPU does not wait for another.
func (g *GPU) begin() bool {
	c := g.choose()
	if c == nil {
		g.held, g.heldFor = 0, nil
		return false
	}
	if g.lets(c) && !c.called {
		return false
	}
	waited := g.heldFor != nil
	if g.held, g.heldFor = g.hold(c); g.held > g.now && !c.called {
		return false
	}
	g.held, g.heldFor = 0, nil
	c.ready = max(g.freed, c.waits)
	if waited {
		c.ready = g.now
	}
	g.reserve(c)
	g.grant(c)
	return true
}

// lets reports whether the GPU is let to a claim that has overrun its turn and is due more than another one: beside that one's
// processes, it would have less.
func (g *GPU) lets(c *claim) bool {
	lets := false
	for _, o := range g.list {
		if o != c && o.straggles && o.part.Class == c.part.Class && o.computing(g) > 0 {
			g.letting = g.now + g.shortest(c)
			lets = lets || o.due() > c.due()
		}
	}
	return lets
}

// hold returns until when the GPU stays free for a claim that pauses rather than being given to another; 0 if it does not. A
// higher class lingers briefly, and so does a claim that is owed much. A claim whose work takes longer than its turn does not
// begin any in a pause of one to which it owes time.
func (g *GPU) hold(c *claim) (until time.Duration, by *claim) {
	for _, o := range g.list {
		if o == c || o.paused == 0 || !o.joined() || o.throttled {
			continue
		}
		wait := time.Duration(0)
		long := c.usual > g.round()/4
		switch {
		case o.part.Class > c.part.Class:
			wait = lingerPause * g.Switch()
			if long && c.below < 0 {
				wait = g.patience()
			}
		case o.part.Class != c.part.Class || o.credit <= 0 || c.credit >= 0:
		case long:
			wait = g.patience()
		case o.credit > g.oneTurn(o)/2:
			wait = owedPause * g.Switch()
		}
		if wait > 0 && o.paused+wait > until {
			until, by = o.paused+wait, o
		}
	}
	return until, by
}

// owedPause is how long a claim that is owed half a turn or more may pause, in terms of a switch, and lingerPause a higher class.
const owedPause, lingerPause = 4, 2

// review sets when the holder's turn is to end, now that others want one: when it has had half a turn more than it is due.
func (g *GPU) review() {
	h := g.holder
	if h == nil || g.draining || h.state == Open {
		return
	}
	if g.waiting(h) == nil {
		g.end = 0
		return
	}
	if g.end > 0 {
		return
	}
	w := g.share(h)
	if w == 1 { // only lower classes want it
		g.end = g.now + g.floorDue(h)
		return
	}
	swing := w * (1 - w) * float64(g.round())
	length := time.Duration((h.credit + swing/2) / (1 - w))
	turn := time.Duration(w * float64(g.round()))
	least := max(g.granted+g.shortest(h)-g.now, 0)
	g.end = g.now + max(min(length, 2*turn), least, 1)
}

// floorDue returns how long it takes at least until a lower class is at its floor.
func (g *GPU) floorDue(h *claim) time.Duration {
	most, wait := 0.0, longestWait
	for _, c := range g.list {
		if c.part.Class < h.part.Class && c.eligible() {
			most, wait = max(most, c.below), min(wait, max(c.waits+longestWait, g.nextFloor)-g.now)
		}
	}
	return max(min(time.Duration((float64(floorTurn)-most)/floor), wait), g.shortest(h))
}

// rival returns another claim that wants the next turn, and can have it; nil if there is none.
func (g *GPU) rival(h *claim) *claim { return g.first(h, g.ready) }

// waiting returns another claim that wants the next turn; nil if none does.
func (g *GPU) waiting(h *claim) *claim { return g.first(h, func(*claim) bool { return true }) }

// first returns the first of the claims beside one that want the next turn.
func (g *GPU) first(h *claim, may func(*claim) bool) *claim {
	var best *claim
	for _, c := range g.list {
		if c != h && c.eligible() && (best == nil || g.before(c, best)) && may(c) {
			best = c
		}
	}
	return best
}

// rests reports whether the holder is idle, and not because it waits for a partner's turn.
func (g *GPU) rests() bool { return g.resting > 0 && !g.holder.awaits() }

// isOver reports whether the holder's turn has to end.
func (g *GPU) isOver(h *claim) bool {
	g.review()
	rival := g.rival(h)
	switch {
	case h.throttled, g.called(h) != nil:
		return true
	case g.rests():
		return g.waiting(h) != nil || h.part.limited() || g.now >= g.resting+rest
	case g.lets(h) && g.now >= g.granted+g.shortest(h):
		return true
	case rival == nil:
		if g.end > 0 && g.now >= g.end { // one waits that cannot have it yet
			g.end = g.now + g.shortest(h)
		}
		return false
	case rival.part.Class > h.part.Class && g.now < g.atLeast:
		g.end = g.atLeast
		return false
	case rival.part.Class > h.part.Class:
		return true
	case g.now < g.end:
		return false
	case rival.part.Class < h.part.Class && g.atFloor(h) == nil:
		g.end = g.now + g.floorDue(h)
		return false
	case rival.part.Class == h.part.Class && rival.due() <= h.due():
		g.end = g.now + g.shortest(h)
		return false
	}
	return true
}
