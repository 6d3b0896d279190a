// Package turns decides which claim computes on a GPU, and for how long. It is a state machine: events and the time go in,
// actions come out. It knows no sockets, no files and no clock, so that a test runs millions of turns in seconds.
//
// Claims take turns in proportion to their shares, by deficit round robin: whoever had more than its share waits until the
// others have caught up, and an idle claim saves nothing. docs/design/compute.md has the rules and their reasons.
package turns

import "time"

// State is the state of a claim's gate, as the page has it.
type State uint32

// The states.
const (
	// Open is for a claim that is alone on the GPU: nothing is counted.
	Open State = iota
	// Metered is for the claim whose turn it is, while others have joined: its outstanding work is bounded.
	Metered
	// Closed is for the others.
	Closed
)

// Class is the priority of a claim; a higher number is served first.
type Class int

// The classes.
const (
	BestEffort Class = iota
	Normal
	High
)

// Part is a claim's part of the GPU's time, in thousandths.
type Part struct {
	Share, Max int
	Class      Class
}

// limited reports whether the claim has a ceiling.
func (p Part) limited() bool { return p.Max < 1000 }

// Process names a process of a claim. The caller chooses it and does not use it again.
type Process uint64

// Action is a change that the caller has to make known to all processes of a claim, in the order of the actions. A change to
// Closed is a revocation: the processes drain and report it.
type Action struct {
	Claim string
	State State
	// Turn numbers the claim's current turn, or its last one.
	Turn uint64
	// Meter is the most outstanding work in the state Metered.
	Meter time.Duration
	// Silent are the processes that were given up and have not drained. In their claim's turn, their gates stay closed.
	Silent []Process

	// If one of the following is set, no state changes. Overran are the processes that have not drained in time; the next turn has
	// begun all the same. Late are those to which the revocation is to be sent again, so that they answer, and GivenUp those
	// that have not. Starves is whether the claim had no turn for very long, by a fault of this package, and has the next.
	Overran, Late, GivenUp []Process
	Starves                bool
}

// The constants of the rules; docs/design/compute.md has them.
const (
	shortestRound = 20 * time.Millisecond
	// switchLoss is the part of the GPU's time that switches may cost.
	switchLoss = 0.02
	// firstDeadline is the least time that a claim has to drain, and drainFactor how many times its usual time that may be.
	firstDeadline = 50 * time.Millisecond
	drainFactor   = 5
	// floor is the part of the GPU's time that the claims of lower classes keep together, and floorTurn its turns.
	floor     = 0.015
	floorTurn = 2 * time.Millisecond
	// longestWait is after which a claim has such a turn, whatever it has saved, unless the last that had one took so long: the
	// higher classes have floorEvery times as long after it.
	longestWait = time.Second
	floorEvery  = 10
	// mostDebt bounds what a claim has to repay.
	mostDebt = 30 * time.Second
	// longestAbsence is for how long at most gates stay closed without a sign of life of the caller.
	longestAbsence = 250 * time.Millisecond
	// rest is how long a claim that is idle keeps its turn while nobody else wants one.
	rest = 50 * time.Millisecond
	// The most outstanding work: within a higher class's patience, for best-effort claims.
	meter, meterBestEffort = 2 * time.Millisecond, 500 * time.Microsecond
	// The cost of a switch between claims: assumed of the GPU itself, and the bounds of what is measured.
	gpuSwitch, mostSwitch = 60 * time.Microsecond, time.Millisecond
)

// GPU is the turns on one GPU. Its methods must not be called concurrently. Times must not go backwards; an earlier one counts
// as the last.
type GPU struct {
	// now is the caller's time without skipped, in which the caller was absent.
	now     time.Duration
	skipped time.Duration
	claims  map[string]*claim
	list    []*claim // in the order in which they were first seen
	actions []Action

	// holder has the turn; nil if nobody has. It drains if draining is set.
	holder   *claim
	draining bool
	granted  time.Duration // when the turn began
	deadline time.Duration // when the next turn begins although it has not drained
	// end is when the turn is to be reviewed; 0 while nobody else wants one.
	end time.Duration
	// resting is since when the holder has been idle while nobody else wants a turn; 0 if it is not.
	resting time.Duration
	// ending is when the holder's last work will have ended, so that the next turn can begin; 0 if that is unknown.
	ending time.Duration
	// held is until when a free GPU waits for a claim that pauses, heldFor; 0 if it does not.
	held    time.Duration
	heldFor *claim
	// letting is when a free GPU that is let to a claim that has overrun its turn has to be looked at again; 0 if it is not.
	letting time.Duration
	// linked is whether programs use a claim of this GPU together with one of another.
	linked bool
	// atLeast is until when the holder keeps its turn although a higher class wants one: it is at its floor.
	atLeast time.Duration
	// nextFloor is when a claim may be at its floor again for having waited.
	nextFloor time.Duration

	// overdue is the claim to which the next turn is due, and since how long it has been.
	overdue *claim
	since   time.Duration

	turn uint64
	// last is the claim whose turn ended last, freed when it was seen to have ended, and foretold whether that was foretold.
	last     *claim
	freed    time.Duration
	foretold bool
	// tail is until when the turn before was foretold to last: that is not charged to the holder.
	tail     time.Duration
	overhead time.Duration // measured cost of a switch outside of the GPU: from the end of a turn until the next one computes
}

// New returns a GPU that no claim has joined.
func New() *GPU { return &GPU{claims: make(map[string]*claim)} }

// Switch returns the cost of a switch between claims.
func (g *GPU) Switch() time.Duration { return min(gpuSwitch+g.overhead, mostSwitch) }

// Actions returns what has to be done, and forgets it.
func (g *GPU) Actions() []Action {
	actions := g.actions
	g.actions = nil
	return actions
}

// Next returns when Tick has to be called; not ok if it has not.
func (g *GPU) Next() (at time.Duration, ok bool) {
	consider := func(t time.Duration) {
		if t > 0 && (!ok || t < at) {
			at, ok = t, true
		}
	}
	switch {
	case g.holder == nil:
		consider(g.held)
		consider(g.letting)
	case g.draining:
		consider(g.deadline)
		consider(g.ending)
	default:
		consider(g.end)
		consider(g.letting)
		if g.rests() {
			consider(g.resting + rest)
		}
	}
	for _, c := range g.list {
		if c.joined() {
			consider(g.thaw(c))
		}
		if c.tail {
			consider(c.deadline)
		}
		if c.drains(g) {
			consider(c.chased())
		}
	}
	if g.governs() {
		consider(g.now + longestAbsence/2)
	}
	return at + g.skipped, ok
}

// governs reports whether a gate is not open.
func (g *GPU) governs() bool {
	for _, c := range g.list {
		if c.joined() && c.state != Open {
			return true
		}
	}
	return false
}

// Tick does what is due. Deadlines pass here alone, so that what has come before is read first, however late that is.
func (g *GPU) Tick(now time.Duration) {
	g.advance(now)
	for _, c := range g.list {
		g.chase(c)
		if c.tail && g.now >= c.deadline {
			c.tail = false
			g.overrun(c)
		}
	}
	g.watch()
	if h := g.holder; g.draining && g.now >= g.deadline {
		g.overrun(h)
		g.ended(h)
	}
	g.step()
}

// step makes the changes that are due, until none is.
func (g *GPU) step() {
	g.letting = 0
	if g.linked {
		g.stepTogether()
		return
	}
	g.throttle()
	for range 8 { // each step can lead to one more, and no two lead to each other for ever
		if !g.change() {
			return
		}
	}
}

// change makes one change that is due, and reports whether it has.
func (g *GPU) change() bool {
	switch h := g.holder; {
	case g.alone() != nil:
		return g.open(g.alone())
	case h == nil:
		return g.begin()
	case h.state == Open: // another one has joined
		g.starts(h)
		h.unmetered = true
		g.set(h, Metered)
		return true
	case g.draining && (h.drained() || !h.joined()):
		g.ended(h)
		return true
	case g.draining && g.ending > 0 && g.now >= g.ending:
		h.tail, h.deadline, g.tail = true, g.deadline, h.ends+h.bias // it drains while the next begins
		g.ended(h)
		return true
	case g.draining:
		return false
	case !h.joined():
		g.ended(h)
		return true
	case g.isOver(h):
		next := g.choose()
		g.reserve(next)
		if next != nil && g.early(next) && !h.throttled && g.resting == 0 {
			g.end = g.now + g.shortest(h)
			return false
		}
		g.revoke(h)
		return true
	}
	return false
}

// alone returns the only claim that has joined, if its gate can be open; nil if there is none.
func (g *GPU) alone() *claim {
	var only *claim
	for _, c := range g.list {
		if c.joined() && only != nil {
			return nil
		}
		if c.joined() {
			only = c
		}
	}
	if only == nil || only.part.limited() {
		return nil
	}
	return only
}

// open opens the gate of the only claim. Its turn lasts until another one joins.
func (g *GPU) open(c *claim) bool {
	if c.state == Open {
		return false
	}
	if g.holder != c || g.draining {
		g.turn++
		g.holder, g.granted, c.turn = c, g.now, g.turn
	}
	g.draining, g.end, g.resting, g.ending, g.held, g.heldFor = false, 0, 0, 0, 0, nil
	c.tail, c.straggles, c.wants, c.called = false, false, false, false
	for _, p := range c.processes {
		p.silent = false // its gate is open, too
	}
	g.set(c, Open)
	return true
}

// set changes a claim's state.
func (g *GPU) set(c *claim, to State) {
	c.state = to
	silent := c.those(func(p *process) bool { return p.silent })
	g.actions = append(g.actions, Action{Claim: c.id, State: to, Turn: c.turn, Meter: g.meter(c), Silent: silent})
}

// meter returns how much outstanding work a claim may have.
func (g *GPU) meter(c *claim) time.Duration {
	if c.part.Class == BestEffort {
		return meterBestEffort
	}
	return meter
}
