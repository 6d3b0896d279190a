package turns

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// node is a simulated GPU with programs that compute on it in turns. Those that have work at the same time get equal parts of
// the GPU.
type node struct {
	gpu      *GPU
	rand     *rand.Rand
	now      time.Duration
	events   timeline
	count    int
	programs []*program
	nextID   Process
	tick     time.Duration // when Tick is due
	ticked   time.Duration // when it was called last, and how often then
	ticks    int
	// latency is how long messages and wake-ups take at most.
	latency time.Duration
	broken  []string // rules that were broken
	overran map[string]bool
	ended   map[string]bool // claims that reported an end of their work
	turns   int
	round   time.Duration // the longest yet
	others  []*node       // whose turns depend on this one's
}

// program is a process of a claim.
type program struct {
	node  *node
	claim string
	share int // for tests that have programs in tables
	id    Process
	// kernel is how long one takes, pause how long the program does something else after it, when it is synchronous.
	kernel, pause time.Duration
	sync          bool
	// lies is whether it never reports the end of its work, and sends messages at random.
	lies bool
	// may is whether it may submit now, submitted what follows, and spins whether its kernel waits for one on another GPU; nil if
	// it has to do with one GPU only.
	may       func() bool
	submitted func()
	ended     func()
	spins     func() bool
	// blocked is whether what it has outstanding waits for memory, and takes no time of the GPU.
	blocked bool
	// wrong is how much too early it foretells the end of its work.
	wrong time.Duration
	// deaf is how often it misses that its turn was revoked: one time in so many.
	deaf int

	// stopped is whether it does nothing, except for its work on the GPU, and missed what it does when it goes on; excused is
	// whether turns may end while it has work: it was given up.
	stopped, excused bool
	missed           []func()

	dead    bool
	state   State
	turn    uint64
	meter   time.Duration
	work    []time.Duration // outstanding
	busy    time.Duration
	spun    time.Duration // had while its kernel waited
	waiting bool
	pausing bool
	off     bool // wants nothing
	revoked bool
	quiet   time.Duration // since when it has neither work nor a submission; 0 if it has
	empty   time.Duration // for how long it had no work in its turn, until quiet
	began   time.Duration // when its turn began
	first   time.Duration // when it went on in its turn after it had waited; 0 if it had not
}

type event struct {
	at time.Duration
	n  int
	do func()
}

type timeline []event

func (t timeline) Len() int { return len(t) }
func (t timeline) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].n < t[j].n
}
func (t timeline) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timeline) Push(e any)   { *t = append(*t, e.(event)) }
func (t *timeline) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func newNode(seed uint64) *node {
	return &node{
		gpu: New(), rand: rand.New(rand.NewPCG(seed, 1)), latency: 60 * time.Microsecond, now: 1,
		overran: make(map[string]bool), ended: make(map[string]bool),
	}
}

func (n *node) after(d time.Duration, do func()) {
	n.count++
	heap.Push(&n.events, event{n.now + max(d, 0), n.count, do})
}

// soon is a latency.
func (n *node) soon() time.Duration {
	return n.latency/3 + time.Duration(n.rand.Int64N(int64(n.latency*2/3)))
}

// look is after how long a process has seen that it has nothing outstanding.
func (n *node) look() time.Duration {
	return n.gpu.Switch() + time.Duration(n.rand.Int64N(int64(looks)))
}

// looks is how often a process looks at the most.
const looks = 250 * time.Microsecond

// add starts a program.
func (n *node) add(p program, part Part) *program {
	n.nextID++
	p.node, p.id, p.state = n, n.nextID, Closed
	started := &p
	n.gpu.Join(n.now, p.claim, part, p.id)
	n.apply()
	n.programs = append(n.programs, started)
	status, _ := n.gpu.Status(n.now, p.claim)
	started.state, started.turn, started.meter = status.State, status.Turn, status.Meter
	started.quiet = n.now
	started.later(n.soon(), started.submit)
	if status.State == Metered {
		started.later(n.look(), func() { started.rest(status.Turn) })
	}
	return started
}

// apply hands the actions of the state machine to the programs, and checks that one claim has the GPU.
func (n *node) apply() {
	n.applyOwn()
	for _, o := range n.others {
		o.applyOwn()
	}
}

func (n *node) applyOwn() {
	for _, a := range n.gpu.Actions() {
		switch {
		case len(a.Overran) > 0:
			n.overran[a.Claim] = true
		case a.Starves:
			n.breaks("%s starves", a.Claim)
		case len(a.Late) > 0:
			n.those(a.Late, func(p *program) { p.later(n.soon(), func() { p.answer(a.Turn) }) })
		case len(a.GivenUp) > 0:
			n.those(a.GivenUp, func(p *program) { p.excused = true })
		default:
			n.change(a)
		}
	}
	n.schedule()
}

// those calls a function for each of some processes.
func (n *node) those(ids []Process, do func(*program)) {
	for _, p := range n.programs {
		if slices.Contains(ids, p.id) {
			do(p)
		}
	}
}

// change hands a change of state to a claim's programs.
func (n *node) change(a Action) {
	if a.State != Closed {
		n.turns++
		n.checkExclusive(a)
	}
	for _, p := range n.programs {
		if p.claim == a.Claim && !p.dead && (a.State != Metered || !slices.Contains(a.Silent, p.id)) {
			p.apply(a)
		}
	}
}

func (n *node) checkExclusive(a Action) {
	for _, p := range n.programs {
		if p.dead || p.claim == a.Claim {
			continue
		}
		if p.state != Closed {
			n.breaks("%s has the turn %d while %s has one", a.Claim, a.Turn, p.claim)
		}
		if len(p.work) > 0 && !p.lies && !p.excused && !n.overran[p.claim] && !n.ended[p.claim] {
			n.breaks("turn %d of %s began while %s had work", a.Turn, a.Claim, p.claim)
		}
	}
	delete(n.overran, a.Claim)
	delete(n.ended, a.Claim)
}

func (n *node) breaks(format string, args ...any) {
	if len(n.broken) < 10 {
		n.broken = append(n.broken, fmt.Sprintf("%v: ", n.now)+fmt.Sprintf(format, args...))
	}
}

// schedule has Tick called when it is due.
func (n *node) schedule() {
	at, ok := n.gpu.Next()
	if !ok || n.tick > 0 && n.tick <= at {
		return
	}
	n.tick = at
	n.after(at-n.now, func() {
		if n.tick == at {
			n.tick = 0
			if n.ticks++; n.now > n.ticked {
				n.ticks, n.ticked = 0, n.now
			}
			if n.ticks > 1000 {
				panic(fmt.Sprintf("Tick is due for ever: %+v", n.gpu))
			}
			n.gpu.Tick(n.now)
			n.apply()
		}
	})
}

// run runs the node for some time, or until some turns have been taken.
func (n *node) run(d time.Duration, turns int) {
	end, last := n.now+d, n.turns+turns
	for turns == 0 || n.turns < last {
		until := end
		if len(n.events) > 0 {
			until = min(end, n.events[0].at)
		}
		if until > n.now && n.compute(until-n.now) > 0 {
			continue // a kernel has ended before that
		}
		if n.now >= end {
			return
		}
		if len(n.events) > 0 && n.events[0].at <= n.now {
			heap.Pop(&n.events).(event).do()
		}
	}
}

// compute has the GPU work for some time, or until the first kernel has ended. It returns how many have.
func (n *node) compute(d time.Duration) (ended int) {
	var busy []*program
	for _, p := range n.programs {
		if len(p.work) > 0 && !p.blocked {
			busy = append(busy, p)
		}
	}
	parts := time.Duration(max(len(busy), 1))
	for _, p := range busy {
		if p.spins == nil || !p.spins() {
			d = min(d, p.work[0]*parts)
		}
	}
	n.now += d
	for _, p := range busy {
		p.busy += d / parts
		if p.spins != nil && p.spins() {
			p.spun += d / parts
			continue
		}
		p.work[0] -= d / parts
		if p.work[0] <= 0 {
			p.work = p.work[1:]
			ended++
			p.finished()
		}
	}
	return ended
}

// apply takes over an action.
func (p *program) apply(a Action) {
	was := p.state
	if a.State != Closed && p.turn != a.Turn {
		p.began, p.empty, p.first = p.node.now, 0, 0
	}
	p.state, p.turn, p.meter = a.State, a.Turn, a.Meter
	switch {
	case a.State == Closed && was != Closed:
		p.pauses()
		if p.deaf == 0 || p.node.rand.IntN(p.deaf) > 0 {
			p.later(p.node.soon(), func() { p.drain(a.Turn) })
		}
		p.later(p.node.soon(), p.submit) // what waited for the meter waits for a turn
	case a.State != Closed && p.waiting:
		p.waiting = false
		p.later(p.node.soon(), func() { p.wake(a.Turn) })
	case a.State == Metered:
		p.later(p.node.look(), func() { p.rest(a.Turn) })
	}
}

// later has the program do something, unless it is stopped by then: then it does it when it goes on.
func (p *program) later(d time.Duration, do func()) {
	p.node.after(d, func() {
		switch {
		case p.dead: // it does nothing any more
		case p.stopped:
			p.missed = append(p.missed, do)
		default:
			do()
		}
	})
}

// stop stops the program: nobody tells the state machine.
func (p *program) stop() {
	p.pauses()
	p.stopped = true
}

// proceed has the program go on.
func (p *program) proceed() {
	missed := p.missed
	p.stopped, p.missed, p.quiet = false, nil, p.node.now
	for _, do := range missed {
		p.later(p.node.soon(), do)
	}
	p.submit()
}

// wake goes on after the program has waited for a turn.
func (p *program) wake(turn uint64) {
	if p.first == 0 && p.turn == turn && p.state == Metered {
		p.first, p.quiet = p.node.now, p.node.now
	}
	p.submit()
}

// pauses adds a pause that ends now. A process that is stopped does not see it.
func (p *program) pauses() {
	if len(p.work) == 0 && !p.stopped {
		p.empty += p.node.now - max(p.quiet, p.began)
	}
}

// submit submits as much as the gate allows.
func (p *program) submit() {
	for !p.dead && !p.stopped && !p.off && !p.pausing && (!p.sync || len(p.work) == 0) && (p.may == nil || p.may()) {
		if p.state == Closed {
			if !p.waiting {
				p.waiting = true
				p.later(p.node.soon(), func() {
					p.node.gpu.Want(p.node.now, p.claim)
					p.node.apply()
				})
			}
			return
		}
		p.waiting = false
		if len(p.work) > 0 && time.Duration(len(p.work)+1)*p.kernel > p.meter {
			return
		}
		p.pauses()
		p.work, p.quiet = append(p.work, p.kernel), 0
		if p.submitted != nil {
			p.submitted()
		}
	}
}

// finished goes on after a kernel.
func (p *program) finished() {
	if p.ended != nil {
		p.ended()
	}
	if len(p.work) == 0 {
		p.quiet = p.node.now
		turn := p.turn
		if p.revoked {
			p.later(p.node.soon(), func() { p.drain(turn) })
		}
		p.later(p.node.look(), func() { p.rest(turn) })
	}
	if !p.sync {
		p.submit()
		return
	}
	p.pausing = true
	p.later(p.pause+p.node.soon(), func() { p.pausing = false; p.submit() })
}

// drain reports the end of the turn as soon as nothing is outstanding, and before that when it will be.
func (p *program) drain(turn uint64) {
	if p.dead || p.lies || p.state != Closed || turn != p.turn && !p.excused {
		return
	}
	ago := time.Duration(0)
	if p.revoked {
		ago = p.node.now - p.quiet
	}
	p.revoked = len(p.work) > 0
	if !p.revoked {
		p.excused = false
		p.node.gpu.Drained(p.node.now, p.claim, p.id, turn, Drain{Ago: ago, Empty: p.empty, First: p.first})
	} else {
		var left time.Duration
		for _, o := range p.node.programs {
			if o.claim == p.claim { // beside which it has seen its kernels take longer
				for _, k := range o.work {
					left += k
				}
			}
		}
		p.node.ended[p.claim] = true
		p.node.gpu.Ending(p.node.now, p.claim, p.id, turn, left-p.wrong)
	}
	p.node.apply()
}

// answer answers whether the program runs.
func (p *program) answer(turn uint64) {
	if p.drain(turn); len(p.work) > 0 && !p.lies {
		p.node.gpu.Ending(p.node.now, p.claim, p.id, turn, 0)
		p.node.apply()
	}
}

// rest reports that the program has been idle for the cost of a switch.
func (p *program) rest(turn uint64) {
	lasted := p.node.now - p.quiet
	if p.dead || p.lies || p.state != Metered || turn != p.turn || len(p.work) > 0 || lasted < p.node.gpu.Switch() {
		return
	}
	p.node.gpu.Idle(p.node.now, p.claim, p.id, turn, min(lasted, p.node.gpu.Switch()))
	p.node.apply()
}

// kill ends the program with all that it has outstanding.
func (p *program) kill() {
	p.dead, p.work = true, nil
	p.node.gpu.Leave(p.node.now, p.claim, p.id)
	p.node.apply()
}

// had returns the time that a claim really had.
func (n *node) had(claim string) (busy time.Duration) {
	for _, p := range n.programs {
		if p.claim == claim {
			busy += p.busy
		}
	}
	return busy
}
