package turns

import (
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// outsider is a program that computes without turns.
func (n *node) outsider(p program) *program {
	p.node, p.claim, p.state, p.meter = n, "outside", Open, meter
	n.programs = append(n.programs, &p)
	p.submit()
	return &p
}

// charging runs a node for a time in which a claim is charged for what an outsider takes, as the driver measures it: in percent, every
// one and a half seconds.
func charging(n *node, d time.Duration, outsider *program, claim string) {
	mark := n.gpu.ChargeOutside(n.now, Mark{}, nil)
	for end := n.now + d; n.now < end; {
		from, had := n.now, outsider.busy
		n.run(1500*ms, 0)
		part := math.Floor(100*float64(outsider.busy-had)/float64(n.now-from)) / 100
		mark = n.gpu.ChargeOutside(n.now, mark, map[string]float64{claim: part})
		n.apply()
	}
}

// during returns the parts of the GPU's time that programs had while something went on.
func during(n *node, do func(), programs ...*program) []float64 {
	began, before := n.now, make([]time.Duration, len(programs))
	for i, p := range programs {
		before[i] = p.busy
	}
	do()
	parts := make([]float64, len(programs))
	for i, p := range programs {
		parts[i] = float64(p.busy-before[i]) / float64(n.now-began)
	}
	return parts
}

// What a claim's programs take past its turns is taken from those that have joined: the others have their shares.
func TestChargeOutside(t *testing.T) {
	for name, kernels := range map[string][]program{
		"alike":       {{kernel: ms}, {kernel: ms}, {kernel: ms}},
		"long":        {{kernel: 300 * us}, {kernel: 5 * ms}, {kernel: 20 * ms}},
		"synchronous": {{kernel: ms}, {kernel: ms, sync: true}, {kernel: 2 * ms, pause: 2 * ms, sync: true}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(31)
			kernels[0].claim, kernels[1].claim = "a", "b"
			a, b := n.add(kernels[0], part(700)), n.add(kernels[1], part(300))
			x := n.outsider(kernels[2])
			n.run(time.Second, 0)
			charging(n, 3*time.Second, x, "a")
			had := during(n, func() { charging(n, 15*time.Second, x, "a") }, a, b, x)
			t.Logf("a had %.3f, b %.3f, outside %.3f", had[0], had[1], had[2])
			must.Less(t, 0.02, math.Abs(had[1]/(had[0]+had[1]+had[2])-0.3))
			recent, _ := n.gpu.Status(n.now, "a")
			must.Less(t, 0.1, math.Abs(recent.Recent-0.7), must.Sprint(recent.Recent))
		})
	}
}

// If they take more than the claim's share, what has joined gets nothing, owes a bounded time, and has its share again then.
func TestChargeOutside_MoreThanTheShare(t *testing.T) {
	n := newNode(32)
	a, b := n.add(program{claim: "a", kernel: ms}, part(300)), n.add(program{claim: "b", kernel: ms}, part(700))
	c := n.add(program{claim: "c", kernel: ms}, part(700))
	x := n.outsider(program{kernel: ms})
	n.run(time.Second, 0)
	charging(n, 9*time.Second, x, "a")
	had := during(n, func() { charging(n, time.Minute, x, "a") }, a, b, c, x)
	must.Less(t, 0.01, had[0], must.Sprint(had))
	must.Less(t, 0.02, math.Abs(had[1]-had[2]), must.Sprint(had))
	x.dead, x.work = true, nil
	n.run(longestRepayment+time.Second, 0)
	had = busyFor(n, 10*time.Second, a, b, c)
	must.Less(t, 0.02, math.Abs(had[0]-3.0/17), must.Sprint(had))
}

// A ceiling counts what they take while nobody else wants the GPU, too.
func TestChargeOutside_Ceiling(t *testing.T) {
	n := newNode(33)
	a := n.add(program{claim: "a", kernel: ms}, Part{Share: 400, Max: 400, Class: Normal})
	x := n.outsider(program{kernel: ms, pause: 4 * ms, sync: true})
	charging(n, 3*time.Second, x, "a")
	had := during(n, func() { charging(n, 15*time.Second, x, "a") }, a, x)
	t.Logf("a had %.3f, outside %.3f", had[0], had[1])
	must.Greater(t, 0.1, had[1])
	must.Less(t, 0.04, math.Abs(had[0]+had[1]-0.4))
}

// Nothing is charged that is unknown: without a mark, long after it, to a claim that has not joined or is alone.
func TestChargeOutside_OnlyWhatIsKnown(t *testing.T) {
	n := newNode(34)
	n.add(program{claim: "a", kernel: ms}, part(500))
	parts := map[string]float64{"a": 0.5, "gone": 0.5}
	mark := n.gpu.ChargeOutside(n.now, Mark{}, parts)
	n.run(time.Second, 0)
	mark = n.gpu.ChargeOutside(n.now, mark, parts)
	alone, _ := n.gpu.Status(n.now, "a")
	must.Eq(t, 0, alone.Had)
	n.add(program{claim: "b", kernel: ms}, part(500))
	n.run(longestOutside+time.Second, 0)
	debt := func() time.Duration { s, _ := n.gpu.Status(n.now, "a"); return s.Debt }
	before := debt()
	mark = n.gpu.ChargeOutside(n.now, mark, parts)
	must.Eq(t, before, debt())
	n.run(time.Second, 0)
	n.gpu.ChargeOutside(n.now, mark, parts)
	must.Greater(t, 100*ms, debt())
	n.checkCredits()
	must.SliceEmpty(t, n.broken)
}

// Whatever is said of who took time outside of turns, one claim has the GPU, nobody who idles saves more than a turn, no debt is
// without bound, and shares hold again afterwards.
func TestChargeOutside_Anything(t *testing.T) {
	n := newNode(35)
	claims := []string{"a", "b", "c", "d"}
	classes := []Class{Normal, Normal, Normal, BestEffort}
	var programs []*program
	for i, id := range claims {
		p := program{claim: id, kernel: time.Duration(i+1) * 500 * us, sync: i == 2, pause: time.Duration(i) * ms}
		programs = append(programs, n.add(p, Part{Share: 100 * (i + 1), Max: 1000 - 300*(i/2), Class: classes[i]}))
	}
	var mark Mark
	for range 100 {
		from, before := n.now, map[string]time.Duration{}
		for _, c := range n.gpu.list {
			before[c.id] = c.usage.total
		}
		n.run(time.Duration(n.rand.Int64N(int64(time.Second))), 0)
		programs[2].off = !programs[2].off
		programs[2].submit()
		n.run(time.Duration(n.rand.Int64N(int64(500*ms))), 0)
		parts := map[string]float64{}
		for _, id := range claims {
			if n.rand.IntN(2) == 0 {
				parts[id] = 2 * n.rand.Float64()
			}
		}
		mark = n.gpu.ChargeOutside(n.now, mark, parts)
		n.apply()
		n.checkCredits()
		for _, c := range n.gpu.list {
			must.LessEq(t, n.now-from, c.usage.total-before[c.id])
			must.LessEq(t, float64(longestRepayment), -c.credit-float64(n.gpu.round()), must.Sprint(c.id))
		}
	}
	must.SliceEmpty(t, n.broken)
	programs[2].off, programs[3].off = true, true // only shares of those that always want the GPU are exact
	n.run(longestRepayment, 0)
	had := busyFor(n, 20*time.Second, programs[0], programs[1])
	must.Less(t, 0.03, math.Abs(had[0]/(had[0]+had[1])-1.0/3), must.Sprint(had))
}
