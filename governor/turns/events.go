package turns

import (
	"slices"
	"time"
)

// Join adds a process to a claim, which has this part of the GPU. It takes part in the claim's turn unless that has ended: nobody
// has told it then that it has to drain, and it has nothing to.
func (g *GPU) Join(now time.Duration, id string, part Part, by Process) {
	g.advance(now)
	c := g.claim(id)
	fresh := c.part == Part{}
	c.part = part
	if fresh {
		c.bucket = g.bucketSize(c)
	}
	if !c.joined() {
		c.state = Closed
	}
	c.processes[by] = &process{drained: c.turn}
	if c == g.holder && !g.draining {
		c.processes[by].drained--
	}
	g.step()
}

// claim returns a claim, which is new if it is not known.
func (g *GPU) claim(id string) *claim {
	c := g.claims[id]
	if c == nil {
		c = &claim{id: id, since: g.now, state: Closed, processes: make(map[Process]*process)}
		g.claims[id] = c
		g.list = append(g.list, c)
	}
	return c
}

// Leave removes a process that has ended. What it had outstanding has ended with it.
func (g *GPU) Leave(now time.Duration, id string, by Process) {
	g.advance(now)
	c := g.claims[id]
	if c == nil {
		return
	}
	delete(c.processes, by)
	if !c.joined() {
		c.wants, c.called, c.used, c.straggles, c.tail, c.throttled, c.paused, c.soon = false, false, false, false, false, false, 0, 0
		g.forfeit(c)
	} else {
		g.settle(c)
	}
	g.step()
}

// Forget removes a claim that no longer exists, with its debt.
func (g *GPU) Forget(now time.Duration, id string) {
	g.advance(now)
	if c := g.claims[id]; c != nil {
		clear(c.processes)
		if c == g.holder {
			g.ended(c)
		}
		delete(g.claims, id)
		g.list = slices.DeleteFunc(g.list, func(o *claim) bool { return o == c })
	}
	g.step()
}

// Set changes a claim's part.
func (g *GPU) Set(now time.Duration, id string, part Part) {
	g.advance(now)
	c := g.claims[id]
	if c == nil || c.part == part {
		return
	}
	if part.Class != c.part.Class {
		c.credit = min(c.credit, 0) // a credit is towards those of the class
	}
	c.part = part
	c.bucket = min(c.bucket, g.bucketSize(c))
	g.end = 0
	g.step()
}

// Want tells that a thread waits at the claim's closed gate.
func (g *GPU) Want(now time.Duration, id string) {
	g.advance(now)
	c := g.claims[id]
	if c == nil || !c.joined() || c.state != Closed {
		return // the gate has opened in the meantime
	}
	if !c.wants {
		c.waits = g.now
	}
	c.wants, c.paused, c.soon = true, 0, 0
	g.wantTogether(c)
	g.step()
}

// Idle tells that a process had neither work nor a submission for some time in a turn.
func (g *GPU) Idle(now time.Duration, id string, by Process, turn uint64, lasted time.Duration) {
	g.advance(now)
	c, p := g.find(id, by)
	if p == nil || c != g.holder || g.draining || turn != c.turn || c.state != Metered {
		return
	}
	p.idle = turn
	if !c.idle() {
		return
	}
	if g.resting == 0 {
		g.refund(c, min(lasted, g.now-g.granted))
	} else if had := g.now - lasted - g.resting; had > 0 && !c.awaits() {
		c.usage.add(g.resting, had) // it was busy in between
	}
	g.resting = g.now
	g.step()
}

// refund takes back what was charged to a claim for the last moments.
func (g *GPU) refund(c *claim, lasted time.Duration) {
	if lasted > 0 && g.charged(c) {
		c.uncharged += lasted
		c.usage.add(g.now-lasted, -lasted)
		g.charge(c, -float64(lasted))
	}
}

// refundPauses takes back what was charged to a claim for the moments of its turn in which the GPU did nothing for it: the switch
// from another claim, until its programs were awake, and between a kernel and the next. They are too short for anybody else. A
// turn is charged by half at least, so that a claim whose programs pause most of the time does not have its share of the work at
// everybody's cost.
func (g *GPU) refundPauses(c *claim) {
	charged := c.revoked - c.began - c.uncharged
	lost := max(c.pauses()-c.uncharged, 0) + max(bounded(c.first()-c.began), 0)
	if c.switched {
		lost += gpuSwitch
	}
	g.refund(c, min(lost, charged/2))
}

// Waits tells whether all that a process has outstanding only waits for memory, and takes no time of the GPU.
func (g *GPU) Waits(now time.Duration, id string, by Process, turn uint64, waits bool) {
	g.advance(now)
	if c, p := g.find(id, by); p != nil && turn == c.turn {
		p.waits = waits
	}
}

// Ending tells that what a process has outstanding will end after some time; 0: it has something outstanding.
func (g *GPU) Ending(now time.Duration, id string, by Process, turn uint64, after time.Duration) {
	g.advance(now)
	c, p := g.find(id, by)
	if p == nil || turn != c.turn {
		return
	}
	p.asked = false
	if c != g.holder || !g.draining || after <= 0 {
		return
	}
	p.ending = g.now + after
	last := c.ending()
	if last == 0 {
		return
	}
	lead := time.Duration(0)
	if next := g.rival(c); next != nil {
		lead = next.lead
	}
	c.ends = last
	g.ending = max(last+c.bias-lead, 1)
	g.step()
}

// Drain is what a process saw of a turn.
type Drain struct {
	// Ago is how long ago it saw that nothing was outstanding, and Empty for how long nothing was before the turn was revoked.
	Ago, Empty time.Duration
	// First is the caller's time at which the process went on in the turn, if it had waited for it; else 0.
	First time.Duration
}

// Drained tells that nothing of a turn is outstanding any more in a process.
func (g *GPU) Drained(now time.Duration, id string, by Process, turn uint64, d Drain) {
	g.advance(now)
	c, p := g.find(id, by)
	switch {
	case p == nil || turn > c.turn:
		return
	case p.silent:
		g.returns(c, p)
		g.step()
		return
	case turn <= p.drained || c == g.holder && !g.draining: // it was asked again, or has not ended
		return
	}
	p.drained, p.waits = turn, false
	if turn == c.turn {
		p.empty, p.first = max(d.Empty, 0), min(d.First-g.skipped, g.now)
		if c.drained() {
			g.saw(c, min(max(d.Ago, 0), g.now-c.revoked))
		}
	}
	g.settle(c)
	g.step()
}

// saw notes that a claim was seen to have drained some time ago.
func (g *GPU) saw(c *claim, ago time.Duration) {
	g.refundPauses(c)
	if !c.tail && (!g.draining || c != g.holder) {
		return
	}
	if ago >= mostSwitch {
		ago = 0 // the governor was late, and not this claim
	}
	g.learnSwitch(c)
	if c.ends > 0 {
		c.bias += bounded(g.now-ago-c.ends-c.bias) / 8
	}
	g.refund(c, ago)
	if h := g.holder; c.tail && h != nil && g.tail > g.now-ago { // it has had the GPU since then
		had := min(g.tail, g.now) - (g.now - ago)
		h.began = g.now - ago
		h.usage.add(h.began, had)
		g.charge(h, float64(had))
	}
	g.freed, g.tail = g.now-ago, 0
}

// learnSwitch notes how long it took from the end of the turn before until a claim computed, and how much earlier its turn would
// have had to begin.
func (g *GPU) learnSwitch(c *claim) {
	first := c.first()
	if first <= 0 || !c.tail && g.tail > 0 {
		return
	}
	gap := bounded(first - max(c.ready, g.freed))
	g.overhead += (max(gap, 0) - g.overhead) / 16
	if c.foretold {
		c.lead = max(bounded(c.lead+gap/8), 0)
	}
}

// bounded returns a time that was measured around a switch, and is not believed to be longer.
func bounded(d time.Duration) time.Duration { return min(max(d, -mostSwitch), mostSwitch) }

// settle notes that a claim whose turn is over has drained.
func (g *GPU) settle(c *claim) {
	if (c.straggles || c.tail) && c.drained() {
		g.learn(c)
		g.deferFloor(c)
		c.straggles, c.tail = false, false
	}
}

func (g *GPU) find(id string, by Process) (*claim, *process) {
	c := g.claims[id]
	if c == nil {
		return nil, nil
	}
	return c, c.processes[by]
}
