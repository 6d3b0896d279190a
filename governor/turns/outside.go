package turns

import (
	"maps"
	"slices"
	"time"
)

// Mark is what each claim on a GPU had been charged at some moment.
type Mark struct {
	at  time.Duration
	had map[string]time.Duration
}

// longestOutside is the longest time since a mark of which anything is known, and how much of a ceiling a claim can owe for it.
const longestOutside = 5 * time.Second

// longestRepayment is for how long at most a claim has no turn for what it owes for that.
const longestRepayment = 30 * time.Second

// ChargeOutside charges claims for the GPU time that their processes took outside of turns since a mark, given the part of the
// GPU's time that those had, by claim. It returns the next mark.
//
// What they took during a turn of another claim was charged to that one, and is moved from there. So a claim's debt is what it
// had too much, however it took that. A claim of which no process has joined is not charged: nothing could be taken from it.
func (g *GPU) ChargeOutside(now time.Duration, since Mark, parts map[string]float64) Mark {
	g.advance(now)
	if window := g.now - since.at; since.had != nil && window > 0 && window <= longestOutside {
		sum := 0.0
		for _, part := range parts {
			sum += part
		}
		for _, id := range slices.Sorted(maps.Keys(parts)) {
			if c := g.claims[id]; c != nil && c.joined() && c.state != Open {
				g.chargeOutside(c, since, window, parts[id]/max(sum, 1))
			}
		}
		g.end = 0
		g.step()
	}
	next := Mark{at: g.now, had: make(map[string]time.Duration, len(g.list))}
	for _, c := range g.list {
		next.had[c.id] = c.usage.total
	}
	return next
}

func (g *GPU) chargeOutside(c *claim, since Mark, window time.Duration, part float64) {
	had := func(o *claim) float64 { return float64(o.usage.total - since.had[o.id]) }
	others := 0.0
	for _, o := range g.list {
		if o != c && o.joined() {
			others += had(o)
		}
	}
	taken := part * max(float64(window)-had(c), 0)
	bucket := max(c.bucket-taken, -float64(longestOutside))
	if others > 0 {
		least := -float64(longestRepayment) * g.oneTurn(c) / float64(g.round())
		moved := min(part, max(c.credit-least, 0)/others)
		for _, o := range g.list {
			if o != c && o.joined() {
				g.move(moved*had(o), o, c)
			}
		}
	}
	c.bucket = bucket
	c.usage.add(since.at, time.Duration(taken))
}

// move moves a charge from one claim to another.
func (g *GPU) move(ns float64, from, to *claim) {
	if from.part.Class == to.part.Class {
		to.credit -= ns
		from.credit += ns
		from.bucket += ns
	} else {
		g.charge(from, -ns)
		g.charge(to, ns)
	}
	if !g.wanting(from) && from.paused == 0 && !from.drains(g) {
		g.forfeit(from) // it is idle by now
	}
}
