package turns

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// Whatever programs do, one claim at a time has the GPU, nobody waits for ever, and the honest ones have their shares.
//
// The adversaries of this test have long kernels, never report the end of their work, send messages of any kind at random,
// fork, die, stop and go on, and change their shares.
func TestProperties(t *testing.T) {
	turns := 100_000
	if os.Getenv("TRANCHE_LONG") != "" {
		turns = 1_000_000
	}
	const each = 5_000
	for seed := range uint64(turns / each) {
		n := newNode(seed)
		honest := []*program{
			n.add(program{claim: "honest 1", kernel: ms}, part(200)), n.add(program{claim: "honest 2", kernel: 200 * us}, part(300)),
		}
		adversaries := newAdversaries(n)
		longest := time.Duration(0)
		waited := make([]time.Duration, len(honest))
		for n.turns < each {
			before := n.now
			had := []time.Duration{honest[0].busy, honest[1].busy}
			n.run(20*ms, 0)
			adversaries.act()
			for i, p := range honest {
				waited[i] += n.now - before
				if p.busy > had[i] {
					waited[i] = 0
				}
				longest = max(longest, waited[i])
			}
			n.checkCredits()
		}
		where := must.Sprintf("seed %d, after %v: honest ones had %v and %v", seed, n.now, honest[0].busy, honest[1].busy)
		must.SliceEmpty(t, n.broken, where, must.Sprint(n.broken))
		// Each of the four adversaries can hold the others up for a deadline of up to two seconds, and owes that afterwards.
		must.Less(t, 10*time.Second, longest, where)
		ratio := float64(honest[0].busy) / float64(honest[0].busy+honest[1].busy)
		must.Less(t, 0.02, math.Abs(ratio-0.4), where)
		status, _ := n.gpu.Status(n.now, "honest 1")
		must.Greater(t, 0.1, float64(status.Had)/float64(n.now), where)
	}
}

// checkCredits checks that a claim that is idle has not saved more than a turn.
func (n *node) checkCredits() {
	n.round = max(n.round, n.gpu.round())
	for _, c := range n.gpu.list {
		if !n.gpu.wanting(c) && c != n.gpu.holder && c.paused == 0 && c.joined() && !c.straggles && !c.tail && !c.throttled &&
			c.credit > float64(n.round) { // a turn at the time, before others joined
			n.breaks("%s is idle and has saved %v", c.id, time.Duration(c.credit))
		}
	}
}

// adversaries are programs that do what they like.
type adversaries struct {
	node     *node
	programs []*program
}

func newAdversaries(n *node) *adversaries { return &adversaries{node: n} }

// act lets one of the adversaries do something.
func (a *adversaries) act() {
	n := a.node
	var p *program
	if len(a.programs) > 0 {
		p = a.programs[n.rand.IntN(len(a.programs))]
	}
	switch what := n.rand.IntN(30); {
	case p == nil || what == 0 && len(a.programs) < 12:
		a.programs = append(a.programs, n.add(a.random(), a.part()))
	case what == 1:
		a.kill(p)
	case what == 2 && len(a.programs) < 12: // a fork
		child := program{claim: p.claim, kernel: p.kernel, pause: p.pause, sync: p.sync, lies: p.lies}
		a.programs = append(a.programs, n.add(child, n.gpu.claims[p.claim].part))
	case what == 3:
		n.gpu.Set(n.now, p.claim, a.part())
	case what == 4:
		if p.stopped {
			p.proceed()
		} else {
			p.stop()
		}
	case what == 5:
		a.lie(p)
	case what == 6:
		p.off = !p.off
		p.submit()
	case what == 7 && !n.gpu.claims[p.claim].joined():
		n.gpu.Forget(n.now, p.claim)
	}
	n.apply()
}

func (a *adversaries) kill(p *program) {
	p.kill()
	for i, o := range a.programs {
		if o == p {
			a.programs = append(a.programs[:i], a.programs[i+1:]...)
			break
		}
	}
	for i, o := range a.node.programs {
		if o == p {
			a.node.programs = append(a.node.programs[:i], a.node.programs[i+1:]...)
			break
		}
	}
}

// lie sends a message that is not true.
func (a *adversaries) lie(p *program) {
	if !p.lies {
		return
	}
	n := a.node
	turn := p.turn + uint64(n.rand.IntN(3)) - 1
	some := time.Duration(n.rand.Int64N(int64(time.Second))) - 100*ms
	switch n.rand.IntN(4) {
	case 0:
		n.gpu.Want(n.now, p.claim)
	case 1:
		n.gpu.Idle(n.now, p.claim, p.id, turn, some)
	case 2:
		n.gpu.Ending(n.now, p.claim, p.id, turn, some)
	case 3:
		n.gpu.Drained(n.now, p.claim, p.id, turn, Drain{Ago: some, Empty: some, First: n.now + some})
	}
}

func (a *adversaries) random() program {
	n := a.node
	kernels := []time.Duration{10 * us, 100 * us, ms, 5 * ms, 50 * ms, 200 * ms}
	return program{
		claim: fmt.Sprint("adversary ", n.rand.IntN(4)), kernel: kernels[n.rand.IntN(len(kernels))], sync: n.rand.IntN(2) == 0,
		pause: time.Duration(n.rand.Int64N(int64(3 * ms))), lies: n.rand.IntN(6) == 0,
	}
}

// part is one that leaves the honest claims theirs: none is of a higher class.
func (a *adversaries) part() Part {
	n := a.node
	p := Part{Share: 1 + n.rand.IntN(200), Max: 1000, Class: Class(n.rand.IntN(2))}
	if n.rand.IntN(3) == 0 {
		p.Max = p.Share + n.rand.IntN(1000-p.Share)
	}
	return p
}

// The same holds on GPUs whose turns depend on each other, because programs use both, and adversaries pretend to.
func TestProperties_GPUs(t *testing.T) {
	turns := 5_000
	if os.Getenv("TRANCHE_LONG") != "" {
		turns = 200_000
	}
	const each = 2_500
	for seed := range uint64(turns / each) {
		g := newGPUs(2, 100+2*seed)
		programs := []*gang{
			g.start(gang{name: "in step", kernel: ms, share: 200}),
			g.start(gang{name: "other order", kernel: ms, share: 200, on: []int{1, 0}}),
		}
		var honest []*program
		var adversaries []*adversaries
		for _, n := range g {
			honest = append(honest, n.add(program{claim: "honest 1", kernel: ms}, part(200)), n.add(program{claim: "honest 2", kernel: 200 * us}, part(300)))
			adversaries = append(adversaries, newAdversaries(n))
		}
		// These wait for two GPUs, and for as long as others are owed more there.
		honest = append(honest, append(programs[0].of, programs[1].of...)...)
		had, since, longest := make([]time.Duration, 8), make([]time.Duration, 8), make([]time.Duration, 8)
		for g[0].turns < each {
			g.run(20 * ms)
			for i, a := range adversaries {
				a.act()
				a.link(g[1-i])
			}
			for i, p := range honest {
				if p.busy > had[i] {
					had[i], since[i] = p.busy, p.node.now
				}
				longest[i] = max(longest[i], p.node.now-since[i])
			}
		}
		where := must.Sprintf("seed %d, after %v", seed, g[0].now)
		must.Less(t, 10*time.Second, slices.Max(longest[:4]), where)
		must.Less(t, time.Minute, slices.Max(longest[4:]), where)
		for i, n := range g {
			must.SliceEmpty(t, n.broken, where, must.Sprint(n.broken))
			ratio := float64(had[2*i]) / float64(had[2*i]+had[2*i+1])
			// Twice what it is on one GPU: turns end early for those that wait for another GPU, too.
			must.Less(t, 0.04, math.Abs(ratio-0.4), where)
		}
	}
}

// Processes of a claim that come, fork and go at any moment of its turns, and that miss a message now and then, do not keep the
// claim from its share.
func TestProperties_Joins(t *testing.T) {
	seeds := uint64(15)
	if os.Getenv("TRANCHE_LONG") != "" {
		seeds = 2000
	}
	for seed := range seeds {
		n := newNode(1000 + seed)
		kernels := []time.Duration{100 * us, ms, 30 * ms, 200 * ms}
		kernel := kernels[n.rand.IntN(len(kernels))]
		share := 100 + n.rand.IntN(800)
		first := n.add(program{claim: "a", kernel: kernel, sync: n.rand.IntN(2) == 0}, part(share))
		other := n.add(program{claim: "b", kernel: ms}, part(1000-share))
		crowd := newAdversaries(n)
		for range 600 {
			n.run(time.Duration(n.rand.Int64N(int64(max(kernel, 20*ms)))), 0)
			switch what := n.rand.IntN(8); {
			case what == 0 && len(crowd.programs) < 6:
				p := program{claim: "a", kernel: kernel, sync: n.rand.IntN(2) == 0, off: n.rand.IntN(4) == 0, deaf: 500 * n.rand.IntN(2)}
				crowd.programs = append(crowd.programs, n.add(p, part(share)))
			case what == 1 && len(crowd.programs) > 0:
				crowd.kill(crowd.programs[n.rand.IntN(len(crowd.programs))])
			}
		}
		for len(crowd.programs) > 4 {
			crowd.kill(crowd.programs[0])
		}
		n.run(2*time.Second, 0)
		const window = 20 * time.Second
		had := busyFor(n, window, first, other)
		where := must.Sprintf("seed %d: share %d, kernel %v, %d processes: %v", seed, share, kernel, len(n.programs)-1, had)
		must.SliceEmpty(t, n.broken, where, must.Sprint(n.broken))
		longest := float64(kernel) * float64(len(n.programs)) / float64(window) // each may launch one at the end of a turn
		must.Less(t, 0.04+longest, math.Abs(had[0]/(had[0]+had[1])-float64(share)/1000), where)
	}
}

// A claim whose processes are stopped, and go on, at whatever moments has no more than its share of the GPU, however long its
// kernels take, and the others have theirs.
func TestProperties_Stops(t *testing.T) {
	seeds := uint64(15)
	if os.Getenv("TRANCHE_LONG") != "" {
		seeds = 2000
	}
	for seed := range seeds {
		n := newNode(2000 + seed)
		kernels := []time.Duration{ms, 10 * ms, 100 * ms, 500 * ms, 2 * time.Second}
		kernel := kernels[n.rand.IntN(len(kernels))]
		share := []int{20, 100, 300}[n.rand.IntN(3)]
		victim := n.add(program{claim: "victim", kernel: ms}, part(1000-share))
		s := &stopper{node: n, sneaks: n.rand.IntN(2) == 0}
		for range 1 + n.rand.IntN(3) {
			s.programs = append(s.programs, n.add(program{claim: "stops", kernel: kernel, sync: n.rand.IntN(2) == 0}, part(share)))
		}
		s.stopFor, s.goFor = time.Duration(n.rand.Int64N(int64(2*kernel+500*ms))), time.Duration(n.rand.Int64N(int64(100*ms)))
		s.together = n.rand.IntN(2) == 0
		s.run(2 * time.Minute) // what is charged for a stop grows
		before := []time.Duration{victim.busy, n.had("stops")}
		const window = 5 * time.Minute
		s.run(window)
		had := []float64{float64(victim.busy-before[0]) / float64(window), float64(n.had("stops")-before[1]) / float64(window)}
		where := must.Sprintf("seed %d: share %d, kernel %v, %d processes, %+v: %v", seed, share, kernel, len(s.programs), *s, had)
		must.SliceEmpty(t, n.broken, where, must.Sprint(n.broken))
		longest := float64(kernel) * float64(len(s.programs)) / float64(window)
		must.Less(t, float64(share)/1000+0.02+2*longest, had[1], where)
		must.Greater(t, 1-float64(share)/1000-0.05-2*longest, had[0], where)
	}
}

// stopper stops programs and has them go on: for some time each, or, if it sneaks, just while they have work on the GPU.
type stopper struct {
	node             *node
	programs         []*program
	stopFor, goFor   time.Duration
	together, sneaks bool
	due              time.Duration
}

func (s *stopper) run(d time.Duration) {
	look := min(max(s.programs[0].kernel/10, 200*us), 5*ms)
	for end := s.node.now + d; s.node.now < end; s.node.run(look, 0) {
		if s.sneaks {
			s.sneak()
		} else if s.node.now >= s.due {
			s.alternate()
		}
	}
}

// sneak stops each program once it has work on the GPU, and has it go on when that has ended.
func (s *stopper) sneak() {
	for _, p := range s.programs {
		switch {
		case !p.stopped && len(p.work) > 0:
			p.stop()
		case p.stopped && len(p.work) == 0:
			p.proceed()
		}
	}
}

func (s *stopper) alternate() {
	programs := s.programs
	if !s.together {
		programs = programs[s.node.rand.IntN(len(programs)):][:1]
	}
	stop := !programs[0].stopped
	for _, p := range programs {
		if stop {
			p.stop()
		} else {
			p.proceed()
		}
	}
	s.due = s.node.now + s.goFor
	if stop {
		s.due = s.node.now + s.stopFor
	}
}

// link pretends that programs use an adversary's claim together with others on another GPU, or no longer.
func (a *adversaries) link(other *node) {
	n := a.node
	if n.rand.IntN(10) > 0 || len(n.gpu.list) == 0 || len(other.gpu.list) == 0 {
		return
	}
	var partners []Partner
	for range n.rand.IntN(3) {
		partners = append(partners, Partner{other.gpu, fmt.Sprint("adversary ", n.rand.IntN(4))})
	}
	n.gpu.Link(n.now, fmt.Sprint("adversary ", n.rand.IntN(4)), partners)
	n.apply()
}
