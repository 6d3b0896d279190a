package turns

import (
	"math"
	"time"
)

// advance charges the time since the last event to whoever had the GPU. A caller that was stopped or had no processor has left
// all gates open after a while: the time since then was nobody's turn, and does not exist here.
func (g *GPU) advance(now time.Duration) {
	passed := now - g.skipped - g.now
	if passed <= 0 {
		return
	}
	if passed > longestAbsence && g.governs() {
		g.skipped += passed - longestAbsence
		passed = longestAbsence
		g.deadline += passed
		for _, c := range g.list {
			c.deadline += passed
			c.asks += passed
			if c.givesUp > 0 {
				c.givesUp += passed
			}
		}
	}
	before := g.now
	g.now += passed
	if g.held > 0 {
		g.chargeHold(float64(passed))
	}
	for _, c := range g.list {
		if c.part.limited() {
			c.bucket += float64(passed) * float64(c.part.Max) / 1000
		}
		if c.wants && c != g.holder {
			c.usage.waited += passed
		}
	}
	waited := min(max(g.tail-before, 0), passed)
	g.spend(before, waited, nil)
	if h := g.holder; h != nil && waited > 0 {
		h.began = before + waited
	}
	g.spend(before+waited, passed-waited, g.holder)
	for _, c := range g.list {
		c.bucket = min(c.bucket, g.bucketSize(c))
		if c.soon > 0 && g.now >= c.soon {
			c.paused, c.soon = c.soon, 0
		}
		if c.paused > 0 && g.now-c.paused >= g.patience() && !c.drains(g) {
			c.paused = 0
			g.forfeit(c)
		}
	}
}

// spend charges time to those who had the GPU: to the holder, and to those whose turn is over and whose work is not. After a
// deadline, a GPU divides its time among processes, so each claim is charged by how many of its own compute.
func (g *GPU) spend(from, passed time.Duration, holder *claim) {
	if passed <= 0 {
		return
	}
	has := func(c *claim) bool { return g.charged(c) && (c == holder || c != g.holder) }
	computing, overran := 0.0, false
	for _, c := range g.list {
		if has(c) {
			computing += c.computing(g)
			overran = overran || c.straggles || c.tail && from >= g.tail+mostSwitch
		}
	}
	for _, c := range g.list {
		had := 0.0
		if has(c) {
			had = float64(passed)
			if overran {
				had *= c.computing(g) / max(computing, 1)
			}
			c.usage.add(from, time.Duration(had))
			g.charge(c, had)
		}
		if c == holder {
			c.uncharged += passed - time.Duration(had)
		}
	}
}

// charged reports whether the GPU's time is charged to a claim: it has a turn that has not ended, and is not idle. Whether its
// processes run does not matter: what they have outstanding may, and others wait for it.
func (g *GPU) charged(c *claim) bool {
	switch {
	case c.state == Open:
		return false
	case c.drains(g):
		return true
	}
	return c == g.holder && !g.rests()
}

// charge charges time on the GPU to a claim, and shares it out as credit among those of its class that want the GPU. So
// credits add up to the same as before. A negative time takes back a charge.
func (g *GPU) charge(c *claim, ns float64) {
	var sum float64
	contended := false
	for _, o := range g.list {
		if o == c || o.part.Class == c.part.Class && g.wanting(o) {
			sum += o.weight()
			contended = contended || o != c
		}
	}
	if contended {
		c.credit -= ns
		for _, o := range g.list {
			if o == c || o.part.Class == c.part.Class && g.wanting(o) {
				o.credit += ns * o.weight() / sum
			}
		}
		c.credit = max(c.credit, -float64(mostDebt))
	}
	if c.part.limited() {
		c.bucket -= ns
	}
	g.chargeBetweenClasses(c, ns)
}

// chargeBetweenClasses is charge for the floor of the lower classes.
func (g *GPU) chargeBetweenClasses(c *claim, ns float64) {
	var lower float64
	higher := false
	for _, o := range g.list {
		switch {
		case !g.wanting(o):
		case o.part.Class > c.part.Class:
			higher = true
		case o.part.Class < c.part.Class:
			lower += o.weight()
		}
	}
	if higher {
		c.below = max(c.below-ns, -float64(mostDebt))
	}
	for _, o := range g.list {
		if lower > 0 && o.part.Class < c.part.Class && g.wanting(o) {
			o.below = min(o.below+floor*ns*o.weight()/lower, 2*float64(floorTurn))
		}
	}
}

// chargeHold charges the time in which the GPU waits for a claim to that claim, so that none waits for ever.
func (g *GPU) chargeHold(ns float64) {
	o := g.heldFor
	g.charge(o, ns)
	for _, c := range g.list {
		if c.part.Class < o.part.Class && g.wanting(c) && c.below < 0 {
			c.below = min(c.below+ns, 0)
		}
	}
}

// wanting reports whether a claim wants the GPU: it waits for a turn, uses its own, or computes although that is over.
func (g *GPU) wanting(c *claim) bool {
	if !c.joined() || c.throttled {
		return false
	}
	return c.wants || c.soon > g.now || c.straggles && c.computing(g) > 0 || c == g.holder && !g.draining && g.resting == 0
}

// forfeit takes from a claim that has been idle the credit beyond one turn, and gives it to those who owe it.
func (g *GPU) forfeit(c *claim) {
	lost := c.credit - g.oneTurn(c)
	if lost <= 0 {
		return
	}
	c.credit -= lost
	var debts float64
	for _, o := range g.list {
		if o.part.Class == c.part.Class && o.credit < 0 {
			debts -= o.credit
		}
	}
	for _, o := range g.list {
		if o.part.Class == c.part.Class && o.credit < 0 {
			o.credit += min(lost, debts) * -o.credit / debts
		}
	}
}

// oneTurn is the length of a claim's turn while all of its class want one.
func (g *GPU) oneTurn(c *claim) float64 {
	sum := c.weight()
	for _, o := range g.list {
		if o != c && o.part.Class == c.part.Class && o.joined() {
			sum += o.weight()
		}
	}
	return c.weight() / sum * float64(g.round())
}

// ceilingWindow is the time over which a ceiling holds, in rounds.
const ceilingWindow = 5

// bucketSize is how much of its ceiling a claim can save up.
func (g *GPU) bucketSize(c *claim) float64 {
	return ceilingWindow * float64(g.round()) * float64(c.part.Max) / 1000
}

// throttle stops the claims that have reached their ceiling, until they may have a quarter of the window's worth again.
func (g *GPU) throttle() {
	for _, c := range g.list {
		switch {
		case !c.part.limited():
			c.throttled = false
		case c.throttled:
			c.throttled = c.bucket < g.thawed(c)
		default:
			c.throttled = c.bucket <= 0
		}
		c.called = c.called && !c.throttled
	}
}

// thawed is the bucket with which a throttled claim goes on.
func (g *GPU) thawed(c *claim) float64 { return g.bucketSize(c) / 4 }

// thaw returns when a claim's ceiling has to be looked at again; 0 if never.
func (g *GPU) thaw(c *claim) time.Duration {
	switch {
	case !c.part.limited():
		return 0
	case c.throttled && (c.wants || c == g.holder):
		missing := max(g.thawed(c)-c.bucket, 0)
		return g.now + 1 + time.Duration(math.Ceil(missing*1000/float64(c.part.Max)))
	case c == g.holder && !g.draining && g.resting == 0:
		return g.now + 1 + time.Duration(c.bucket*1000/float64(1000-c.part.Max))
	}
	return 0
}
