package turns

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

func part(share int) Part { return Part{Share: share, Max: 1000, Class: Normal} }

// busyFor runs a node and returns the part of that time that each program's claim had.
func busyFor(n *node, d time.Duration, programs ...*program) []float64 {
	before := make([]time.Duration, len(programs))
	for i, p := range programs {
		before[i] = n.had(p.claim)
	}
	n.run(d, 0)
	parts := make([]float64, len(programs))
	for i, p := range programs {
		parts[i] = float64(n.had(p.claim)-before[i]) / float64(d)
	}
	return parts
}

// within is the promised error of a claim's part of the GPU time that all had in a window.
func within(had []float64, window time.Duration, longest time.Duration) float64 {
	sum := 0.0
	for _, h := range had {
		sum += h
	}
	return float64(shortestRound+longest) / (sum * float64(window))
}

// Shares are exact whatever the kernels are, within what the longest one needs, and little is lost. It does not matter whether a
// program queues work or waits for each of its kernels, and is back some 40 µs after it has ended.
func TestShares(t *testing.T) {
	kernels := map[string]program{
		"20us": {kernel: 20 * us}, "1ms": {kernel: ms}, "30ms": {kernel: 30 * ms}, "100ms": {kernel: 100 * ms},
		"sync 50us": {kernel: 50 * us, sync: true}, "sync 200us": {kernel: 200 * us, pause: 20 * us, sync: true},
		"sync 5ms": {kernel: 5 * ms, sync: true},
	}
	for one, a := range kernels {
		for other, b := range kernels {
			for _, shares := range [][]int{{500, 500}, {300, 700}, {100, 900}} {
				if one > other {
					continue
				}
				t.Run(fmt.Sprintf("%d:%d %s %s", shares[0], shares[1], one, other), func(t *testing.T) {
					n := newNode(1)
					a.claim, b.claim = "a", "b"
					programs := []*program{n.add(a, part(shares[0])), n.add(b, part(shares[1]))}
					n.run(time.Second, 0)
					had := busyFor(n, 8*time.Second, programs...)
					must.SliceEmpty(t, n.broken)
					got := had[0] / (had[0] + had[1])
					must.Less(t, within(had, 8*time.Second, max(a.kernel, b.kernel)), math.Abs(got-float64(shares[0])/1000),
						must.Sprintf("a had %.3f, b %.3f", had[0], had[1]))
					if !a.sync && !b.sync {
						must.Greater(t, 0.97, had[0]+had[1])
					}
				})
			}
		}
	}
}

func TestShares_Eight(t *testing.T) {
	n := newNode(2)
	shares := []int{20, 30, 50, 100, 120, 150, 230, 300}
	var programs []*program
	for i, share := range shares {
		programs = append(programs, n.add(program{claim: fmt.Sprint(i), kernel: time.Duration(i*i+1) * 100 * us}, part(share)))
	}
	had := busyFor(n, 20*time.Second, programs...)
	must.SliceEmpty(t, n.broken)
	sum := 0.0
	for _, h := range had {
		sum += h
	}
	must.Greater(t, 0.97, sum)
	for i, h := range had {
		must.Less(t, 0.01, math.Abs(h/sum-float64(shares[i])/1000), must.Sprintf("%d had %.3f", i, h))
	}
}

// What one claim does not use belongs to the others, soon; and it has saved nothing when it comes back.
func TestIdleShareIsRegained(t *testing.T) {
	n := newNode(3)
	a, b := n.add(program{claim: "a", kernel: ms}, part(500)), n.add(program{claim: "b", kernel: ms}, part(500))
	n.run(time.Second, 0)
	a.off = true
	n.run(40*ms, 0) // two rounds
	had := busyFor(n, 10*time.Second, a, b)
	must.Greater(t, 0.97, had[1])
	a.off = false
	a.submit()
	had = busyFor(n, time.Second, a, b)
	must.Less(t, 0.53, had[0])
	must.Greater(t, 0.47, had[0])
	must.SliceEmpty(t, n.broken)
}

// One kernel of 300 ms is many turns of the other claim.
func TestShares_ShortBesideVeryLong(t *testing.T) {
	n := newNode(17)
	a, b := n.add(program{claim: "a", kernel: 10 * us}, part(800)), n.add(program{claim: "b", kernel: 300 * ms}, part(200))
	n.run(2*time.Second, 0)
	had := busyFor(n, 20*time.Second, a, b)
	must.SliceEmpty(t, n.broken)
	must.Less(t, within(had, 20*time.Second, b.kernel), math.Abs(had[0]/(had[0]+had[1])-0.8), must.Sprint(had))
	must.Greater(t, 0.98, had[0]+had[1], must.Sprint(had))
}

// A program whose pauses are as long as what it computes is charged by half, so that it does not cost the others more.
func TestPauses_AreNotAllAtTheCostOfOthers(t *testing.T) {
	n := newNode(18)
	a := n.add(program{claim: "a", kernel: 5 * us, sync: true}, part(300))
	b := n.add(program{claim: "b", kernel: ms}, part(700))
	n.run(time.Second, 0)
	had := busyFor(n, 8*time.Second, a, b)
	must.Greater(t, 0.5, had[1], must.Sprint(had))
	must.Positive(t, had[0])
}

// Of a claim's processes one may pause while another computes.
func TestPauses_OfSeveralProcesses(t *testing.T) {
	for name, other := range map[string]program{"idle": {off: true}, "busy": {kernel: 100 * us}, "pauses, too": {kernel: 100 * us, sync: true}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(19)
			other.claim = "a"
			a, b := n.add(program{claim: "a", kernel: 100 * us, sync: true}, part(500)), n.add(program{claim: "b", kernel: ms}, part(500))
			n.add(other, part(500))
			n.run(time.Second, 0)
			had := busyFor(n, 8*time.Second, a, b)
			must.SliceEmpty(t, n.broken)
			must.Less(t, 0.02, math.Abs(had[0]/(had[0]+had[1])-0.5), must.Sprint(had))
		})
	}
}

// A message that has come in time counts, although the deadline has passed before it is read.
func TestTick_DeadlinesPassAfterMessages(t *testing.T) {
	for _, late := range []bool{false, true} {
		g, now := New(), time.Second
		g.Join(now, "a", part(500), 1)
		g.Join(now, "b", part(500), 2)
		g.Want(now, "b")
		for g.claims["a"].state != Closed {
			now, _ = g.Next()
			g.Tick(now)
		}
		now += 2 * firstDeadline
		if late {
			g.Tick(now)
		}
		g.Want(now, "b")
		g.Drained(now, "a", 1, g.claims["a"].turn, Drain{Ago: 90 * ms})
		g.Tick(now)
		must.Eq(t, Metered, g.claims["b"].state)
		must.Eq(t, late, g.claims["a"].usage.overruns == 1)
	}
}

// The time in which nobody governed was nobody's turn, and no turn has ended too late meanwhile.
func TestTick_AfterALongAbsence(t *testing.T) {
	n := newNode(20)
	a, b := n.add(program{claim: "a", kernel: ms}, part(500)), n.add(program{claim: "b", kernel: ms}, part(500))
	n.run(time.Second, 0)
	for range 10 {
		n.run(30*ms, 0)
		n.now += 10 * time.Second
	}
	n.run(0, 2)
	for _, c := range n.gpu.list {
		must.Less(t, float64(longestAbsence), math.Abs(c.credit), must.Sprint(c.id))
		must.Eq(t, 0, c.usage.overruns)
	}
	n.run(5*time.Second, 0)
	had := busyFor(n, 5*time.Second, a, b)
	must.SliceEmpty(t, n.broken)
	must.Less(t, 0.01, math.Abs(had[0]-had[1]), must.Sprint(had))
}

// A claim that pauses after each kernel has its share all the same, beside one with long kernels.
func TestPauses(t *testing.T) {
	for _, long := range []time.Duration{ms, 100 * ms, 300 * ms} {
		t.Run(long.String(), func(t *testing.T) {
			n := newNode(4)
			a := n.add(program{claim: "a", kernel: 5 * ms, pause: 300 * us, sync: true}, part(500))
			b := n.add(program{claim: "b", kernel: long}, part(500))
			n.run(2*time.Second, 0)
			had := busyFor(n, 20*time.Second, a, b)
			must.Greater(t, 0.45, had[0], must.Sprint(had))
			must.Greater(t, 0.45, had[1], must.Sprint(had))
			must.SliceEmpty(t, n.broken)
		})
	}
}

func TestCeiling(t *testing.T) {
	for _, kernel := range []time.Duration{10 * us, ms, 30 * ms} {
		for _, limit := range []int{100, 500, 900} {
			t.Run(fmt.Sprintf("%s %d", kernel, limit), func(t *testing.T) {
				n := newNode(5)
				a := n.add(program{claim: "a", kernel: kernel}, Part{Share: 100, Max: limit, Class: Normal})
				n.run(time.Second, 0)
				had := busyFor(n, 20*time.Second, a)
				must.Less(t, 0.02, math.Abs(had[0]-float64(limit)/1000), must.Sprint(had))
			})
		}
	}
	t.Run("beside another", func(t *testing.T) {
		n := newNode(6)
		a := n.add(program{claim: "a", kernel: ms}, Part{Share: 500, Max: 500, Class: Normal})
		b := n.add(program{claim: "b", kernel: ms}, Part{Share: 100, Max: 1000, Class: Normal})
		had := busyFor(n, 20*time.Second, a, b)
		must.Less(t, 0.02, math.Abs(had[0]-0.5), must.Sprint(had))
		must.Greater(t, 0.45, had[1], must.Sprint(had))
	})
}

func TestClasses(t *testing.T) {
	t.Run("lower ones keep a floor", func(t *testing.T) {
		n := newNode(7)
		a := n.add(program{claim: "a", kernel: ms}, Part{Share: 500, Max: 1000, Class: High})
		b := n.add(program{claim: "b", kernel: ms}, Part{Share: 400, Max: 1000, Class: BestEffort})
		had := busyFor(n, 30*time.Second, a, b)
		must.Greater(t, 0.01, had[1], must.Sprint(had))
		must.Less(t, 0.025, had[1], must.Sprint(had))
		must.Greater(t, 0.94, had[0], must.Sprint(had))
	})
	t.Run("long kernels of a lower one do not get more", func(t *testing.T) {
		n := newNode(8)
		a := n.add(program{claim: "a", kernel: 2 * ms, pause: 200 * us, sync: true}, Part{Share: 500, Max: 1000, Class: High})
		b := n.add(program{claim: "b", kernel: 30 * ms}, Part{Share: 500, Max: 1000, Class: BestEffort})
		n.run(5*time.Second, 0)
		had := busyFor(n, 30*time.Second, a, b)
		must.Less(t, 0.13, had[1], must.Sprint(had))
		must.Greater(t, 0.75, had[0], must.Sprint(had))
	})
	t.Run("none waits for more than a second, and what is outstanding", func(t *testing.T) {
		n := newNode(16)
		n.add(program{claim: "a", kernel: 20 * ms}, Part{Share: 500, Max: 1000, Class: High})
		n.add(program{claim: "b", kernel: 20 * ms}, Part{Share: 500, Max: 1000, Class: High})
		var low []*program
		for i := range 4 {
			low = append(low, n.add(program{claim: fmt.Sprint(i), kernel: 20 * ms}, Part{Share: 100, Max: 1000, Class: Class(i % 2)}))
		}
		n.run(2*time.Second, 0)
		for range 10 {
			for _, h := range busyFor(n, 1500*ms, low...) {
				must.Positive(t, h)
			}
		}
	})
	t.Run("those with long kernels leave a higher one nine tenths of the time", func(t *testing.T) {
		for claims, kernel := range map[int]time.Duration{4: 2 * time.Second, 1: 20 * ms} {
			n := newNode(26)
			a := n.add(program{claim: "a", kernel: ms}, Part{Share: 500, Max: 1000, Class: High})
			for i := range 20 {
				low := program{claim: fmt.Sprint(i % claims), kernel: kernel}
				n.add(low, Part{Share: 100, Max: 1000, Class: BestEffort})
			}
			n.run(10*time.Second, 0)
			had := busyFor(n, 20*time.Minute, a)
			must.Greater(t, 0.89, had[0], must.Sprint(claims, had))
		}
	})
	t.Run("lower ones with short kernels have as much as those with long ones of their class", func(t *testing.T) {
		for class, ratio := range map[Class][2]float64{BestEffort: {0.8, 1.3}, Normal: {5, 15}} {
			n := newNode(28)
			n.add(program{claim: "a", kernel: 20 * ms}, Part{Share: 400, Max: 1000, Class: High})
			short := n.add(program{claim: "short", kernel: 4 * ms}, Part{Share: 300, Max: 1000, Class: class})
			long := n.add(program{claim: "long", kernel: 100 * ms}, Part{Share: 300, Max: 1000, Class: BestEffort})
			n.run(10*time.Second, 0)
			had := busyFor(n, 5*time.Minute, short, long)
			must.Between(t, ratio[0], had[0]/had[1], ratio[1], must.Sprint(class, had))
			must.Less(t, 0.11, had[0]+had[1], must.Sprint(class, had))
		}
	})
	t.Run("a request of a high one waits for what is outstanding only", func(t *testing.T) {
		n := newNode(9)
		n.add(program{claim: "b", kernel: ms}, Part{Share: 500, Max: 1000, Class: BestEffort})
		a := n.add(program{claim: "a", kernel: 10 * ms, pause: 30 * ms, sync: true}, Part{Share: 500, Max: 1000, Class: High})
		n.run(time.Second, 0)
		worst := time.Duration(0)
		for range 200 {
			for !a.pausing {
				n.run(100*us, 0)
			}
			for a.pausing {
				n.run(100*us, 0)
			}
			began := n.now
			for !a.pausing {
				n.run(100*us, 0)
			}
			worst = max(worst, n.now-began)
		}
		must.Less(t, 12*ms, worst)
	})
	t.Run("normal ones share what a high one leaves", func(t *testing.T) {
		n := newNode(10)
		n.add(program{claim: "h", kernel: 10 * ms, pause: 10 * ms, sync: true}, Part{Share: 100, Max: 1000, Class: High})
		a := n.add(program{claim: "a", kernel: ms}, part(300))
		b := n.add(program{claim: "b", kernel: ms}, part(600))
		had := busyFor(n, 20*time.Second, a, b)
		must.Less(t, 0.02, math.Abs(had[0]/(had[0]+had[1])-1.0/3), must.Sprint(had))
	})
}

func TestSet_TakesEffectWithinTwoTurns(t *testing.T) {
	n := newNode(11)
	a, b := n.add(program{claim: "a", kernel: ms}, part(500)), n.add(program{claim: "b", kernel: ms}, part(500))
	n.run(time.Second, 0)
	n.gpu.Set(n.now, "a", part(900))
	n.gpu.Set(n.now, "b", part(100))
	n.apply()
	n.run(0, 2)
	had := busyFor(n, 200*ms, a, b)
	must.Less(t, 0.06, math.Abs(had[0]/(had[0]+had[1])-0.9), must.Sprint(had))
}

// The processes of a claim share its turns: who has more gets no more.
func TestProcessesOfOneClaimShareItsTurn(t *testing.T) {
	n := newNode(12)
	b := n.add(program{claim: "b", kernel: ms}, part(500))
	a := n.add(program{claim: "a", kernel: ms}, part(500))
	for range 9 {
		n.add(program{claim: "a", kernel: ms}, part(500))
	}
	had := busyFor(n, 20*time.Second, a, b)
	must.Less(t, 0.02, math.Abs(had[0]-had[1]), must.Sprint(had))
	must.SliceEmpty(t, n.broken)
}

// A claim whose processes take longer to drain than its deadline has no more for that: while turns overlap, each claim is charged
// for what its processes had.
func TestShares_OfManyLongKernels(t *testing.T) {
	for _, share := range []int{100, 500} {
		n := newNode(27)
		many := n.add(program{claim: "many", kernel: 200 * ms}, part(share))
		for range 49 {
			n.add(program{claim: "many", kernel: 200 * ms}, part(share))
		}
		one := n.add(program{claim: "one", kernel: ms}, part(1000-share))
		n.run(time.Minute, 0)
		had := busyFor(n, 5*time.Minute, many, one)
		must.Less(t, 0.03, math.Abs(had[0]-float64(share)/1000), must.Sprint(share, had))
		must.Greater(t, 0.96-float64(share)/1000, had[1], must.Sprint(share, had))
		status, _ := n.gpu.Status(n.now, "many")
		must.Less(t, 0.03, math.Abs(float64(status.Had)/float64(n.had("many"))-1), must.Sprint(status))
	}
}

// A claim with kernels that take longer than its deadline has its share beside one with many processes.
func TestShares_OfALongKernelBesideMany(t *testing.T) {
	n := newNode(30)
	long := n.add(program{claim: "long", kernel: 2500 * ms, sync: true}, part(500))
	many := n.add(program{claim: "many", kernel: 4 * ms}, part(500))
	for range 9 {
		n.add(program{claim: "many", kernel: 4 * ms}, part(500))
	}
	n.run(10*time.Second, 0)
	had := busyFor(n, 2*time.Minute, long, many)
	must.Less(t, 0.03, math.Abs(had[0]-0.5), must.Sprint(had))
	must.Greater(t, 0.46, had[1], must.Sprint(had))
}

// A claim whose process only waits for memory takes no time: others have theirs as if it was not there.
func TestWaits_IsNotCharged(t *testing.T) {
	n := newNode(29)
	capped := n.add(program{claim: "capped", kernel: ms}, Part{Share: 300, Max: 300, Class: Normal})
	waits := n.add(program{claim: "waits", kernel: time.Hour}, part(50))
	one := n.add(program{claim: "one", kernel: ms}, part(300))
	for range 9 {
		n.add(program{claim: "capped", kernel: ms}, Part{Share: 300, Max: 300, Class: Normal})
	}
	n.run(5*time.Second, 0)
	must.True(t, n.overran["waits"])
	waits.blocked = true
	n.gpu.Waits(n.now, "waits", waits.id, waits.turn, true)
	had := busyFor(n, 30*time.Second, capped, one)
	must.Between(t, 0.28, had[0], 0.31, must.Sprint(had))
}

func TestEndless_OthersGoOnAfterTheDeadline(t *testing.T) {
	n := newNode(13)
	a := n.add(program{claim: "a", kernel: time.Hour}, part(500))
	b := n.add(program{claim: "b", kernel: ms}, part(500))
	had := busyFor(n, 10*time.Second, a, b)
	must.Greater(t, 0.45, had[1], must.Sprint(had)) // beside the kernel that does not end
	must.True(t, n.overran["a"])
	status, _ := n.gpu.Status(n.now, "a")
	must.Eq(t, 1, status.Overruns)
	a.kill()
	n.run(20*ms, 0)
	must.Eq(t, Open, b.state)
}

// What a claim has overrun is repaid by its next processes.
func TestDebt_OutlivesAProcess(t *testing.T) {
	n := newNode(14)
	a := n.add(program{claim: "a", kernel: 400 * ms}, part(500))
	b := n.add(program{claim: "b", kernel: ms}, part(500))
	n.run(10*ms, 0)
	n.run(300*ms, 0)
	debts := n.gpu.Debts(n.now)
	must.Less(t, -float64(20*ms), debts["a"])
	a.kill()
	status, _ := n.gpu.Status(n.now, "a")
	must.Eq(t, 0, status.Processes)
	again := New()
	again.Restore(debts)
	must.Eq(t, debts, again.Debts(0))
	a = n.add(program{claim: "a", kernel: ms}, part(500))
	had := busyFor(n, 40*ms, a, b)
	must.Less(t, 0.1, had[0], must.Sprint(had))
	had = busyFor(n, 10*time.Second, a, b)
	must.Greater(t, 0.45, had[0], must.Sprint(had))
}

// A process that is stopped in the midst of its turn delays others for a moment, is charged for that, and has its turns again when
// it goes on. Meanwhile others of its claim have them.
func TestStopped(t *testing.T) {
	for _, others := range []int{0, 1} {
		t.Run(fmt.Sprint(others, " others"), func(t *testing.T) {
			n := newNode(15)
			a := n.add(program{claim: "a", kernel: ms}, part(500))
			b := n.add(program{claim: "b", kernel: ms}, part(500))
			for range others {
				n.add(program{claim: "a", kernel: ms}, part(500))
			}
			n.run(time.Second, 0)
			for a.state == Closed {
				n.run(100*us, 0)
			}
			a.stop()
			for a.state != Closed {
				n.run(100*us, 0)
			}
			n.run(firstDeadline+ms, 0)
			must.Eq(t, Metered, b.state)
			for !a.excused {
				n.run(ms, 0)
			}
			must.Less(t, float64(asksAfter+leastSilence+20*ms), -n.gpu.Debts(n.now)["a"])
			must.Less(t, asksAfter+leastSilence+20*ms, n.gpu.claims["a"].gaveUp-n.gpu.claims["a"].revoked)
			n.run(2*time.Second, 0)
			had := busyFor(n, 10*time.Second, a, b)
			must.Less(t, 0.02, math.Abs(had[0]-0.5*float64(others)), must.Sprint(had))
			must.Greater(t, 0.97, had[0]+had[1], must.Sprint(had))
			status, _ := n.gpu.Status(n.now, "a")
			must.Eq(t, 1, status.Overruns)
			a.proceed()
			n.run(2*time.Second, 0)
			had = busyFor(n, 10*time.Second, a, b)
			must.Greater(t, 0.48, had[0], must.Sprint(had))
			must.SliceEmpty(t, n.broken)
		})
	}
}

// A process that was given up has no turn before it has drained, and has it at once if its claim's is running.
func TestGivenUp_Returns(t *testing.T) {
	n := newNode(23)
	a := n.add(program{claim: "a", kernel: 700 * ms, sync: true}, part(500))
	beside := n.add(program{claim: "a", kernel: ms}, part(500))
	n.add(program{claim: "b", kernel: ms}, part(500))
	for a.state != Metered || len(a.work) == 0 {
		n.run(100*us, 0)
	}
	a.stop()
	for !a.excused {
		n.run(ms, 0)
	}
	for beside.state != Metered {
		n.run(100*us, 0)
	}
	must.Eq(t, Closed, a.state)
	for len(a.work) > 0 {
		n.run(100*us, 0)
	}
	for before := beside.turn; beside.state != Metered || beside.turn == before; {
		n.run(100*us, 0)
	}
	a.proceed()
	n.run(500*us, 0)
	must.Eq(t, Metered, beside.state)
	must.Eq(t, Metered, a.state)
	c := n.gpu.claims["a"]
	must.True(t, c.late(c.processes[a.id]), must.Sprint("it has to drain this turn"))
	must.SliceEmpty(t, n.broken)
}

// A process that joins while its claim's turn drains has nothing to drain, and no word of that.
func TestJoin_WhileItsClaimDrains(t *testing.T) {
	g, now := New(), time.Second
	g.Join(now, "a", part(500), 1)
	g.Join(now, "b", part(500), 2)
	g.Want(now, "b")
	for g.claims["a"].state != Closed {
		now, _ = g.Next()
		g.Tick(now)
	}
	g.Join(now, "a", part(500), 3)
	g.Drained(now, "a", 1, g.claims["a"].turn, Drain{})
	must.Eq(t, Metered, g.claims["b"].state)
	must.False(t, g.claims["a"].straggles)
}

// A process that reads the number of a turn before it reads that its gate is open has drained nothing.
func TestDrained_OfATurnThatBegins(t *testing.T) {
	g, now := New(), time.Second
	g.Join(now, "a", part(500), 1)
	g.Join(now, "b", part(500), 2)
	g.Drained(now, "a", 1, g.claims["a"].turn, Drain{})
	g.Want(now, "b")
	for g.claims["a"].state != Closed {
		now, _ = g.Next()
		g.Tick(now)
	}
	must.Eq(t, Closed, g.claims["b"].state)
	g.Drained(now, "a", 1, g.claims["a"].turn, Drain{})
	must.Eq(t, Metered, g.claims["b"].state)
}

// A ceiling is that of a claim, and not of each process that joins it.
func TestCeiling_OfProcessesThatComeAndGo(t *testing.T) {
	n := newNode(24)
	had := time.Duration(0)
	for n.now < 20*time.Second {
		a := n.add(program{claim: "a", kernel: ms}, Part{Share: 100, Max: 100, Class: Normal})
		n.run(20*ms, 0)
		had += a.busy
		a.kill()
		n.programs = nil
	}
	must.Less(t, 0.12, float64(had)/float64(n.now))
}

// A claim that has no turn although it is due one has it after a while, and this package's fault is reported.
func TestStarves(t *testing.T) {
	n := newNode(25)
	a, b := n.add(program{claim: "a", kernel: ms}, part(500)), n.add(program{claim: "b", kernel: ms}, part(500))
	n.run(time.Second, 0)
	for b.state != Metered {
		n.run(ms, 0)
	}
	for had := a.busy; a.busy == had && n.now < 2*starves; n.run(ms, 0) {
		n.gpu.end = n.now + time.Second // of a turn that never ends
	}
	must.SliceLen(t, 1, n.broken)
	must.Between(t, starves, n.now, starves+2*time.Second)
	n.run(2*starves, 0)
	had := busyFor(n, time.Second, a, b)
	must.Less(t, 0.02, math.Abs(had[0]-had[1]))
	must.SliceLen(t, 1, n.broken)
}

// What a claim had queued while its gate was open takes long, and says nothing of how long its later turns take to end.
func TestDeadline_AfterALongQueue(t *testing.T) {
	g, now := New(), ms
	until := func(id string, state State) {
		for {
			if status, _ := g.Status(now, id); status.State == state {
				return
			}
			at, ok := g.Next()
			must.True(t, ok)
			now = max(now, at)
			g.Tick(now)
		}
	}
	drain := func(id string, by Process, after time.Duration) {
		until(id, Closed)
		now += after
		status, _ := g.Status(now, id)
		g.Drained(now, id, by, status.Turn, Drain{})
		g.Want(now, id)
	}
	g.Join(now, "a", part(500), 1)
	g.Join(now, "b", part(500), 2)
	g.Want(now, "b")
	drain("a", 1, 45*ms)
	drain("b", 2, 0)
	until("a", Closed)
	revoked := now
	until("b", Metered)
	must.LessEq(t, revoked+firstDeadline, now)
}

// The next turn begins so early that its programs are awake when the one before ends; switches and the time until then are charged
// to nobody, so that a claim with a small share and so with short turns has all of it.
func TestSwitch(t *testing.T) {
	n := newNode(21)
	n.latency = 300 * us
	a, b := n.add(program{claim: "a", kernel: ms}, part(100)), n.add(program{claim: "b", kernel: ms}, part(900))
	n.run(2*time.Second, 0)
	turns := n.turns
	had := busyFor(n, 10*time.Second, a, b)
	must.SliceEmpty(t, n.broken)
	lost := 10 * time.Second * time.Duration(1e6*(1-had[0]-had[1])) / 1e6 / time.Duration(n.turns-turns)
	must.Less(t, 100*us, lost, must.Sprint(lost))
	must.Less(t, 0.002, math.Abs(had[0]/(had[0]+had[1])-0.1), must.Sprint(had))
	must.Less(t, 200*us, n.gpu.Switch())
}

// Who foretells ends too early or too late gets the next turn begun no earlier and no later than others for long.
func TestEnding_Wrong(t *testing.T) {
	for _, wrong := range []time.Duration{600 * us, -600 * us} {
		n := newNode(22)
		a, b := n.add(program{claim: "a", kernel: ms, wrong: wrong}, part(500)), n.add(program{claim: "b", kernel: ms}, part(500))
		n.run(2*time.Second, 0)
		had := busyFor(n, 5*time.Second, a, b)
		must.SliceEmpty(t, n.broken)
		must.Less(t, 100*us, (n.gpu.claims["a"].bias - wrong).Abs())
		must.Less(t, 100*us, n.gpu.claims["b"].bias.Abs())
		must.Greater(t, 0.99, had[0]+had[1], must.Sprint(had))
	}
}

// A turn is charged from when its programs went on, without the switch, and not before the end of the turn before, although it
// begins earlier.
func TestCharge_BeginsWithTheWork(t *testing.T) {
	g, now := New(), time.Second
	g.Join(now, "a", part(500), 1)
	g.Join(now, "b", part(500), 2)
	endOf := func(id, next string) {
		g.Want(now, next)
		for g.claims[id].state != Closed {
			now, _ = g.Next()
			g.Tick(now)
		}
	}
	had := func(id string) time.Duration {
		status, _ := g.Status(now, id)
		return status.Had
	}

	endOf("a", "b")
	g.Drained(now, "a", 1, g.claims["a"].turn, Drain{})
	must.Eq(t, Metered, g.claims["b"].state)
	began := now
	endOf("b", "a")
	g.claims["a"].lead = ms
	g.Ending(now, "b", 2, g.claims["b"].turn, 2*ms)
	before := had("a")
	now += ms
	g.Tick(now)
	must.Eq(t, Metered, g.claims["a"].state)
	now += 600 * us
	g.Drained(now, "b", 2, g.claims["b"].turn, Drain{Ago: 100 * us, First: began + 800*us})
	must.Eq(t, now-100*us-began-800*us-gpuSwitch, had("b"))
	must.Eq(t, 100*us, had("a")-before)
	now += ms
	must.Eq(t, 1100*us, had("a")-before)
}
