package turns

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// gpus are simulated GPUs of one node, whose clocks go together.
type gpus [2]*node

// run runs the GPUs for some time.
func (g gpus) run(d time.Duration) {
	for end := g[0].now + d; g[0].now < end; {
		for _, n := range g {
			n.run(10*us, 0)
		}
	}
}

// both is a program that launches a kernel on one GPU and then one on the other, and goes on when both have ended.
type both struct {
	of              [2]*program
	launched, ended [2]int
}

// both starts a program of the claim on both GPUs. If its kernels meet, each occupies its GPU until the other runs, too, as
// collective operations do.
func (g gpus) both(claim string, meet bool) *both {
	b := &both{}
	for i, n := range g {
		p := n.add(program{claim: claim, kernel: ms, off: true}, part(500))
		p.submitted = func() {
			b.launched[i]++
			if i == 0 {
				g[1].after(0, b.of[1].submit)
			}
		}
		p.ended = func() {
			b.ended[i]++
			if b.ended[0] == b.ended[1] {
				g[0].after(g[0].soon(), b.of[0].submit)
			}
		}
		if meet {
			p.spins = func() bool { return b.launched[1-i] < b.launched[i] }
		}
		b.of[i] = p
	}
	b.of[0].may = func() bool { return b.ended == [2]int{b.launched[0], b.launched[0]} }
	b.of[1].may = func() bool { return b.launched[1] < b.launched[0] }
	for _, p := range b.of {
		p.off = false
	}
	b.of[0].submit()
	return b
}

// Programs that need two GPUs at once go on beside neighbours on each of them, which have their shares at least, and beside others
// that take the GPUs in the opposite order. What it costs is logged.
func TestGPUs(t *testing.T) {
	for _, test := range []struct {
		name           string
		meet, opposite bool
		least          float64 // of each GPU
	}{
		{"launched in step", false, false, 0.15},
		{"kernels that meet", true, false, 0.15},
		{"kernels that meet, launched in opposite orders", true, true, 0.05},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := gpus{newNode(30), newNode(31)}
			a, loads := g.both("a", test.meet), []*program{}
			if test.opposite {
				other := gpus{g[1], g[0]}.both("b", test.meet)
				loads = append(loads, other.of[1], other.of[0])
			} else {
				for _, n := range g {
					loads = append(loads, n.add(program{claim: "b", kernel: ms}, part(500)))
				}
			}
			const window = 10 * time.Second
			g.run(window)
			for i, p := range a.of {
				worked, spun := fraction(p.busy-p.spun, window), fraction(p.spun, window)
				other := fraction(loads[i].busy-loads[i].spun, window)
				t.Logf("GPU %d: a had %.3f, and waited in %.3f for the other GPU; the neighbour had %.3f", i, worked, spun, other)
				must.Greater(t, test.least, worked)
				must.Greater(t, test.least, other)
				if !test.opposite {
					must.Greater(t, 0.48, other)
				}
			}
			must.SliceEmpty(t, append(g[0].broken, g[1].broken...))
		})
	}
}

func fraction(of, window time.Duration) float64 { return float64(of) / float64(window) }
