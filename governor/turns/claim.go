package turns

import (
	"slices"
	"time"
)

// claim is a claim that has joined, or has a debt.
type claim struct {
	id    string
	part  Part
	state State
	turn  uint64 // its last turn
	// wants is whether a thread waits at the closed gate.
	wants bool
	// straggles is whether it has overrun its turn and has not drained yet; tail is whether it is about to.
	straggles, tail bool
	// partners are the claims on other GPUs that its programs use together with it. called is whether the next turn is its own, so
	// that it has it at the same time as they have theirs, and used whether its last turn was of use until it ended.
	partners     []partner
	called, used bool
	// throttled is whether it waits because of its ceiling.
	throttled bool

	// credit is how much more (or, if negative, less) of the GPU's time is due to it than it had, compared with others of its
	// class; below the same compared with the higher classes, for the floor. bucket is what its ceiling still allows.
	credit, below, bucket float64
	// usual is how long it takes to drain, and unmetered whether its turn says nothing of that: it began with work that no meter
	// has bounded, or a process was given up.
	usual     time.Duration
	unmetered bool
	// paused is when it last became idle; 0 if it is not, or has been for long.
	paused time.Duration
	// began is when its last turn began, uncharged how much of that was not charged, and revoked when it was revoked. Until
	// soon, the claim counts as one that wants the next.
	began, uncharged, revoked, soon time.Duration
	// waits is since when it has waited for a turn, ready since when the GPU could have been its own, foretold whether the end
	// of the turn before was, and switched whether that was another claim's.
	waits, ready       time.Duration
	foretold, switched bool
	// ends is when its turn was foretold to have ended, and bias how much later such ends usually are.
	ends, bias time.Duration
	// lead is how long before the end of another's turn its own has to begin, so that its programs are awake by then.
	lead time.Duration
	// deadline is when a tail has overrun its turn, too.
	deadline time.Duration
	// asks is when the processes that have not drained are asked whether they run, and givesUp when those that have not answered
	// are given up; 0 if they are not asked. Silence bounds that, and gaveUp is when it did last.
	asks, givesUp   time.Duration
	silence, gaveUp time.Duration
	// since is when it was first seen.
	since time.Duration

	processes map[Process]*process
	usage     usage
}

// process is what is known of a process that has joined.
type process struct {
	drained uint64 // the last turn that it has drained
	idle    uint64 // the last turn in which it was idle
	ending  time.Duration
	empty   time.Duration // for how long it had nothing outstanding in that turn
	first   time.Duration // when it went on in that turn, if it had waited for it
	// waits is whether what it has outstanding only waits for memory.
	waits bool
	// asked is whether it was asked whether it runs, and has not answered.
	asked bool
	// silent is whether it was given up, since it did not answer. Its gate is closed, and turns end without it, until it drains.
	silent bool
}

// joined reports whether the claim has a process.
func (c *claim) joined() bool { return len(c.processes) > 0 }

// drains reports whether the claim's turn is over and has not been accounted for yet.
func (c *claim) drains(g *GPU) bool { return c.tail || c.straggles || c == g.holder && g.draining }

// late reports whether the claim's last turn waits for a process to drain.
func (c *claim) late(p *process) bool { return p.drained < c.turn && !p.silent }

// drained reports whether nothing of the claim's last turn is outstanding.
func (c *claim) drained() bool {
	for _, p := range c.processes {
		if c.late(p) {
			return false
		}
	}
	return true
}

// computing returns how many of the claim's processes compute, as far as is known: in its turn those that were not idle, one at
// least, and after that those that have not drained and do not only wait.
func (c *claim) computing(g *GPU) float64 {
	over, count := c.drains(g), 0
	for _, p := range c.processes {
		if c.late(p) && (over && !p.waits || !over && p.idle < c.turn) {
			count++
		}
	}
	if !over {
		count = max(count, 1)
	}
	return float64(count)
}

// idle reports whether all processes were idle in the claim's last turn.
func (c *claim) idle() bool {
	for _, p := range c.processes {
		if p.idle < c.turn && c.late(p) {
			return false
		}
	}
	return true
}

// pauses estimates for how long the GPU had nothing to do in the claim's last turn, from what its processes saw: each of them
// had work at some part of the time, independently of the others.
func (c *claim) pauses() time.Duration {
	turn := float64(c.revoked - c.began)
	if turn <= 0 {
		return 0
	}
	part := 1.0
	for _, p := range c.processes {
		if !p.silent {
			part *= min(float64(p.empty)/turn, 1)
		}
	}
	return time.Duration(part * turn)
}

// ending returns when what is outstanding will have ended; 0 if a process has not said.
func (c *claim) ending() (last time.Duration) {
	for _, p := range c.processes {
		switch {
		case !c.late(p):
		case p.ending == 0:
			return 0
		default:
			last = max(last, p.ending)
		}
	}
	return last
}

// first returns when the first of the claim's processes went on in the last turn; 0 if that is unknown.
func (c *claim) first() (first time.Duration) {
	for _, p := range c.processes {
		if p.first > 0 && (first == 0 || p.first < first) {
			first = p.first
		}
	}
	return first
}

// those returns the processes for which something is so.
func (c *claim) those(so func(*process) bool) (found []Process) {
	for id, p := range c.processes {
		if so(p) {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

// eligible reports whether the claim can get a turn.
func (c *claim) eligible() bool {
	return c.joined() && c.wants && !c.throttled && !c.tail && !c.straggles
}

// weight is the claim's share.
func (c *claim) weight() float64 { return float64(max(c.part.Share, 1)) }

// due is the claim's credit in comparison with others: in terms of a share.
func (c *claim) due() float64 { return c.credit / c.weight() }
