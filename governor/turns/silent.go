package turns

import "time"

const (
	// asksAfter is how long after the end of a turn the processes that have not drained are asked whether they run.
	asksAfter = 100 * time.Millisecond
	// leastSilence and mostSilence bound how long they have to answer.
	leastSilence, mostSilence = 250 * time.Millisecond, 30 * time.Second
	// silenceGrows is how much longer that becomes each time, and silenceFades how much shorter in time: by a second in two minutes.
	silenceGrows = 4
	silenceFades = 1.0 / 120
	// starves is how long a claim may wait for a turn that is due to it before all others. No rule makes it wait for nearly as long.
	starves = 30 * time.Second
)

// chase asks the processes for which the end of a claim's turn has waited for some time whether they run, and gives up those that
// do not answer: they are stopped by a signal, a debugger or a frozen cgroup, hang, or have missed a message.
func (g *GPU) chase(c *claim) {
	switch {
	case !c.drains(g) || c.chased() > g.now:
	case c.givesUp > 0:
		g.giveUp(c)
		c.asks, c.givesUp = g.now+max(asksAfter, (g.now-c.revoked)/2), 0
	default:
		late := c.those(c.late)
		for _, by := range late {
			c.processes[by].asked = true
		}
		c.givesUp = g.now + g.silence(c)
		g.tell(c, Action{Late: late})
	}
}

// chased is when a claim whose turn has ended has to be looked at again.
func (c *claim) chased() time.Duration {
	if c.givesUp > 0 {
		return c.givesUp
	}
	return c.asks
}

// silence is how long a claim's processes have to answer. What they have outstanding is charged as long. It grows each time, since
// a process may be stopped as long as a kernel of its takes: who does that often is charged for all of it, and who stops one
// for an hour once is charged for a moment.
func (g *GPU) silence(c *claim) time.Duration {
	return max(leastSilence, c.silence-time.Duration(float64(g.now-c.gaveUp)*silenceFades))
}

// giveUp gives up the processes that have not answered, so that turns go on without them. They have none before they have drained.
func (g *GPU) giveUp(c *claim) {
	silent := c.those(func(p *process) bool { return c.late(p) && p.asked })
	if len(silent) == 0 {
		return
	}
	for _, by := range silent {
		c.processes[by].silent = true
	}
	c.silence, c.gaveUp, c.unmetered = min(silenceGrows*g.silence(c), mostSilence), g.now, true
	g.tell(c, Action{GivenUp: silent})
	g.settle(c)
}

// returns has a process take part again that was given up and has drained now. Its gate was closed since.
func (g *GPU) returns(c *claim, p *process) {
	p.silent, p.drained = false, c.turn
	if c == g.holder && !g.draining {
		p.drained--
		g.set(c, c.state)
	}
}

// watch has the claim that is due the next turn have it if it has been that for very long. That is a fault of this package.
func (g *GPU) watch() {
	c := g.waiting(nil)
	if h := g.holder; c != nil && h != nil && h.part.Class > c.part.Class {
		c = nil // it waits for its floor
	}
	if c != g.overdue {
		g.overdue, g.since = c, g.now
	}
	if c == nil || g.now-g.since < starves || c.credit <= g.oneTurn(c)+float64(mostUsual) {
		return
	}
	c.called, g.since = true, g.now
	g.tell(c, Action{Starves: true})
}

// tell adds an action that changes no state.
func (g *GPU) tell(c *claim, a Action) {
	a.Claim, a.State, a.Turn, a.Meter = c.id, c.state, c.turn, g.meter(c)
	g.actions = append(g.actions, a)
}
