package turns

import "time"

// window is the time over which Recent is measured.
const window = 10 * time.Second

// usage is what a claim had of the GPU.
type usage struct {
	total, waited   time.Duration
	turns, overruns uint64
	// seconds has the time had in each of the last seconds, and at is the second of each.
	seconds [window/time.Second + 1]time.Duration
	at      [window/time.Second + 1]time.Duration
}

// add adds time that was had from a moment on. It is negative where less was had than was added before.
func (u *usage) add(from, had time.Duration) {
	u.total += had
	if had < 0 {
		*u.bucket(from / time.Second) += had
		return
	}
	for had > 0 {
		second := from / time.Second
		part := min(had, (second+1)*time.Second-from)
		*u.bucket(second) += part
		from, had = from+part, had-part
	}
}

func (u *usage) bucket(second time.Duration) *time.Duration {
	i := int(second) % len(u.seconds)
	if u.at[i] != second {
		u.at[i], u.seconds[i] = second, 0
	}
	return &u.seconds[i]
}

// recent returns the part of the last whole seconds that was had.
func (u *usage) recent(now, since time.Duration) float64 {
	last := now / time.Second // not over yet
	var had, whole time.Duration
	for second := max(last-window/time.Second, since/time.Second); second < last; second++ {
		whole += time.Second
		if i := int(second) % len(u.seconds); u.at[i] == second {
			had += u.seconds[i]
		}
	}
	if whole == 0 {
		return 0
	}
	return min(max(float64(had)/float64(whole), 0), 1)
}

// Status is what a claim has and had on a GPU.
type Status struct {
	Part      Part
	State     State
	Turn      uint64
	Meter     time.Duration
	Processes int
	// Had is the GPU's time since the claim joined, Waited how long it waited for turns, Recent the part of the last ten
	// seconds that it had. While its gate is open, nothing is counted.
	Had, Waited time.Duration
	Recent      float64
	Overruns    uint64
	Turns       uint64
	// Debt is what the claim has to repay.
	Debt time.Duration
}

// Status returns the status of a claim.
func (g *GPU) Status(now time.Duration, id string) (Status, bool) {
	g.advance(now)
	c := g.claims[id]
	if c == nil {
		return Status{}, false
	}
	return Status{
		Part: c.part, State: c.state, Turn: c.turn, Meter: g.meter(c), Processes: len(c.processes),
		Had: c.usage.total, Waited: c.usage.waited, Recent: c.usage.recent(g.now, c.since), Overruns: c.usage.overruns,
		Turns: c.usage.turns, Debt: time.Duration(max(-c.credit, 0)),
	}, true
}

// Debts returns what the claims have to repay, and what is due to them, so that another governor goes on with that.
func (g *GPU) Debts(now time.Duration) map[string]float64 {
	g.advance(now)
	debts := make(map[string]float64, len(g.claims))
	for _, c := range g.list {
		if c.credit != 0 {
			debts[c.id] = c.credit
		}
	}
	return debts
}

// Restore sets the debts of claims that have not joined yet.
func (g *GPU) Restore(debts map[string]float64) {
	for id, credit := range debts {
		g.claim(id).credit = max(min(credit, float64(mostDebt)), -float64(mostDebt))
	}
}
