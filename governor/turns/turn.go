package turns

import (
	"slices"
	"time"
)

// grant begins a claim's turn.
func (g *GPU) grant(c *claim) {
	g.turn++
	g.holder, c.turn = c, g.turn
	g.draining, g.end, g.resting, g.ending = false, 0, 0, 0
	g.atLeast = 0
	if g.isAtFloor(c) {
		g.atLeast = g.now + max(floorTurn, g.othersDrain(c))
	}
	c.foretold, c.switched = g.foretold, g.last != c
	c.wants, c.called, c.straggles, c.paused, c.soon, c.unmetered = false, false, false, 0, 0, false
	c.usage.turns++
	g.starts(c)
	g.set(c, Metered)
	c.met()
}

// othersDrain is how long those of a claim's class and below usually take to drain: what they have of the GPU at their floor.
func (g *GPU) othersDrain(c *claim) (longest time.Duration) {
	for _, o := range g.list {
		if o != c && o.part.Class <= c.part.Class && o.wants {
			longest = max(longest, o.usual)
		}
	}
	return longest
}

// starts begins the account of a claim's turn.
func (g *GPU) starts(c *claim) {
	g.granted, c.began, c.uncharged, c.ends = g.now, g.now, 0, 0
	for _, p := range c.processes {
		p.ending, p.empty, p.first, p.asked, p.waits = 0, 0, 0, false, false
	}
}

// revoke ends a claim's turn: its processes drain.
func (g *GPU) revoke(c *claim) {
	if idle := g.resting; idle > 0 || c.idle() {
		c.paused = max(idle, 1)
		if idle == 0 {
			c.paused = g.now
		}
	}
	g.draining, g.end, g.resting, g.ending = true, 0, 0, 0
	c.revoked = g.now
	g.deadline = g.now + max(firstDeadline, drainFactor*c.usual)
	c.asks, c.givesUp = g.now+asksAfter, 0
	g.set(c, Closed)
	c.used = c.paused == 0 || !slices.ContainsFunc(c.partners, partner.holds)
	if c.paused == 0 {
		c.endTogether()
	}
}

// ended frees the GPU after the holder has drained, or although it has not.
func (g *GPU) ended(h *claim) {
	if g.draining && h.paused == 0 && !h.wants {
		h.soon = g.now + soon
	}
	if g.draining && h.drained() && h.joined() {
		g.learn(h)
	}
	if h.state != Closed {
		g.set(h, Closed)
	}
	g.deferFloor(h)
	g.last, g.foretold = h, g.ending > 0
	g.holder, g.draining, g.end, g.resting, g.ending, g.atLeast = nil, false, 0, 0, 0, 0
}

// deferFloor has the higher classes that want the GPU have it for long enough after a claim's turn.
func (g *GPU) deferFloor(c *claim) {
	if g.outranked(c) {
		g.nextFloor = max(g.nextFloor, g.now+floorEvery*(g.now-c.began))
	}
}

// learn notes how long a claim has taken to drain: at once if it was longer than usual, and slowly if it was shorter. What it had
// queued while its gate was open tells nothing of that.
func (g *GPU) learn(c *claim) {
	if c.unmetered {
		return
	}
	took := min(g.now-c.revoked, mostUsual)
	c.usual = max(took, c.usual-(c.usual-took)/8)
}

// overrun notes that a claim has not drained in time. The next turn begins all the same, and both are charged.
func (g *GPU) overrun(c *claim) {
	if c.drained() {
		return
	}
	c.straggles = true
	c.usage.overruns++
	g.tell(c, Action{Overran: c.those(c.late)})
}

const (
	// soon is how long a claim whose turn ended while it had work counts as one that wants the next: its programs have to
	// wake up and submit more.
	soon = 500 * time.Microsecond
	// mostUsual bounds how long a drain is expected to take.
	mostUsual = 400 * time.Millisecond
)
