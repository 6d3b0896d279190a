package turns

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// gpus are simulated GPUs of one node, whose clocks go together.
type gpus []*node

func newGPUs(count int, seed uint64) gpus {
	g := make(gpus, count)
	for i := range g {
		g[i] = newNode(seed + uint64(i))
	}
	for i := range g {
		g[i].others = slices.Delete(slices.Clone(g), i, i+1)
	}
	return g
}

// run runs the GPUs for some time.
func (g gpus) run(d time.Duration) {
	for end := g[0].now + d; g[0].now < end; {
		for _, n := range g {
			n.run(20*us, 0)
		}
	}
}

// gang is a program that launches each of its kernels on several GPUs, in this order.
type gang struct {
	name  string
	on    []int // 0 and 1 if nil
	share int   // 500 if 0
	// kernel is how long they take; on the last GPU it is last, unless that is 0.
	kernel, last time.Duration
	// depth is how many it launches before it waits for the first to have ended on all GPUs, and pause how long it does
	// something else then.
	depth int
	pause time.Duration
	// meet is whether each kernel occupies its GPU until it runs on the others, too, as collective operations do, and threads
	// whether it launches on each GPU in a thread of its own.
	meet, threads bool
	pausing       bool
	alone         bool  // its kernels on one GPU have nothing to do with those on another
	class         Class // beside Normal

	gpus            gpus
	of              []*program
	launched, ended []int
}

// start starts a program.
func (g gpus) start(b gang) *gang {
	if b.on == nil {
		b.on = []int{0, 1}
	}
	if b.share == 0 {
		b.share = 500
	}
	b.gpus, b.launched, b.ended = g, make([]int, len(b.on)), make([]int, len(b.on))
	b.depth = max(b.depth, 1)
	for i, on := range b.on {
		p := program{claim: b.name, kernel: b.kernel, off: true}
		if i == len(b.on)-1 && b.last > 0 {
			p.kernel = b.last
		}
		b.of = append(b.of, g[on].add(p, Part{Share: b.share, Max: 1000, Class: Normal + b.class}))
	}
	for i, on := range b.on {
		var partners []Partner
		for j, other := range b.on {
			if i != j {
				partners = append(partners, Partner{g[other].gpu, b.name})
			}
		}
		g[on].gpu.Link(g[on].now, b.name, partners)
		p := b.of[i]
		p.off = false
		p.may = func() bool { return b.may(i) }
		p.submitted = func() { b.launched[i]++; b.next(0) }
		p.ended = func() {
			b.ended[i]++
			if b.pause > 0 && slices.Min(b.ended) == slices.Max(b.launched) {
				b.pausing = true
				g[on].after(b.pause, func() { b.pausing = false; b.next(0) })
			}
			b.next(g[on].soon())
		}
		if b.meet {
			p.spins = func() bool { return slices.Min(b.launched) <= b.ended[i] }
		}
	}
	b.next(0)
	return &b
}

// may reports whether the program launches on one of its GPUs now.
func (b *gang) may(i int) bool {
	switch {
	case b.pausing:
		return false
	case b.alone:
		return b.launched[i] < b.ended[i]+b.depth
	case b.launched[i] >= slices.Min(b.ended)+b.depth:
		return false
	case b.threads:
		return true
	}
	return i == slices.Index(b.launched, slices.Min(b.launched)) // the GPUs before it have had this one
}

// next has the program launch what it may.
func (b *gang) next(after time.Duration) {
	for i, on := range b.on {
		b.gpus[on].after(after, func() {
			if !b.of[i].pausing {
				b.of[i].submit()
			}
		})
	}
}

// hadOf logs and returns what of a GPU the claims had, without what their kernels waited for others.
func (n *node) hadOf(t *testing.T, gpu int, window time.Duration) map[string]float64 {
	had, text := map[string]float64{}, ""
	for _, p := range n.programs {
		had[p.claim] = float64(p.busy-p.spun) / float64(window)
		text += fmt.Sprintf("; %s had %.3f", p.claim, had[p.claim])
		if p.spun > 0 {
			text += fmt.Sprintf(" and waited in %.3f", float64(p.spun)/float64(window))
		}
	}
	t.Logf("GPU %d%s", gpu, text)
	return had
}

// Programs on several GPUs have their turns on all of them together, so that they lose little; their neighbours have their shares,
// and nobody waits for ever. least is what of each GPU the programs have, and each neighbour has its share.
func TestGPUs(t *testing.T) {
	neighbours := func(kernel time.Duration, shares ...int) (all []program) {
		for i, share := range shares {
			all = append(all, program{claim: fmt.Sprint("neighbour ", i), kernel: kernel, share: share})
		}
		return all
	}
	half := neighbours(ms, 500)
	for _, test := range []struct {
		name       string
		gangs      []gang
		neighbours [3][]program // by GPU
		least      []float64
	}{
		{"in step", []gang{{kernel: ms}}, [3][]program{half, half}, []float64{0.47}},
		{"in step, with pauses", []gang{{kernel: ms, pause: ms}}, [3][]program{half, half}, []float64{0.19}},
		{"in step, short on one", []gang{{kernel: ms, last: 100 * us}}, [3][]program{half, half}, []float64{0.03}},
		{"in step, crowded on one", []gang{{kernel: ms}}, [3][]program{half, neighbours(ms, 500, 500, 500)}, []float64{0.18}},
		{"in step, alone on one", []gang{{kernel: ms}}, [3][]program{nil, half}, []float64{0.46}},
		{"in step, beside long kernels", []gang{{kernel: ms}}, [3][]program{half, neighbours(30*ms, 500)}, []float64{0.42}},
		{"in step at 30:70", []gang{{kernel: ms, share: 300}, {kernel: ms, share: 700}}, [3][]program{}, []float64{0.28, 0.66}},
		{"in step, best effort", []gang{{kernel: ms, class: -1}}, [3][]program{half, half}, []float64{0.008}},
		{"in step, high", []gang{{kernel: ms, class: 1, pause: 10 * ms}}, [3][]program{half, half}, []float64{0.07}},
		{"queues that are full", []gang{{kernel: ms, alone: true, depth: 64}}, [3][]program{half, neighbours(ms, 500, 500, 500)}, []float64{0.24}},
		{"kernels that meet", []gang{{kernel: ms, meet: true}}, [3][]program{half, half}, []float64{0.47}},
		{"kernels that meet, queued", []gang{{kernel: ms, meet: true, depth: 64}}, [3][]program{half, half}, []float64{0.47}},
		{"kernels that meet, by two threads", []gang{{kernel: ms, meet: true, depth: 64, threads: true}}, [3][]program{half, half}, []float64{0.46}},
		{"kernels that meet, beside long kernels", []gang{{kernel: ms, meet: true}}, [3][]program{half, neighbours(30*ms, 500)}, []float64{0.42}},
		{"kernels that meet, beside many", []gang{{kernel: ms, meet: true, share: 100}},
			[3][]program{neighbours(ms, 20, 30, 50, 100, 120, 150, 230), neighbours(ms, 100, 100, 100, 200, 200, 200)}, []float64{0.05}},
		{"kernels that meet, in opposite orders", []gang{{kernel: ms, meet: true}, {kernel: ms, meet: true, on: []int{1, 0}}},
			[3][]program{}, []float64{0.45, 0.45}},
		{"kernels that meet, queued in opposite orders",
			[]gang{{kernel: ms, meet: true, depth: 64}, {kernel: ms, meet: true, depth: 64, on: []int{1, 0}}}, [3][]program{}, []float64{0.43, 0.43}},
		{"three GPUs", []gang{{kernel: ms, meet: true, on: []int{0, 1, 2}}, {kernel: ms, meet: true, on: []int{2, 1, 0}}},
			[3][]program{}, []float64{0.40, 0.40}},
		{"overlapping", []gang{{kernel: ms, meet: true}, {kernel: ms, meet: true, on: []int{2, 1}}, {kernel: ms, on: []int{1, 0}}},
			[3][]program{half, nil, half}, []float64{0.22, 0.18, 0.22}},
	} {
		t.Run(test.name, func(t *testing.T) {
			count := 0
			for _, b := range test.gangs {
				count = max(count, slices.Max(append(slices.Clone(b.on), 1))+1)
			}
			g := newGPUs(count, 30)
			for i, b := range test.gangs {
				b.name = fmt.Sprint("program ", i)
				test.gangs[i] = *g.start(b)
			}
			for i, n := range g {
				for _, p := range test.neighbours[i] {
					n.add(p, part(p.share))
				}
			}
			const window = 5 * time.Second
			g.run(window)
			for i, n := range g {
				sum := 0.0
				for _, c := range n.gpu.list {
					sum += c.weight()
				}
				had := n.hadOf(t, i, window)
				for _, p := range test.neighbours[i] {
					must.Greater(t, 0.9*float64(p.share)/sum, had[p.claim], must.Sprint(p.claim))
				}
				for j, b := range test.gangs {
					if slices.Contains(b.on, i) {
						must.Greater(t, test.least[j], had[b.name], must.Sprint(b.name))
					}
				}
				must.SliceEmpty(t, n.broken, must.Sprint(n.broken))
			}
		})
	}
}

// Without a need for the other GPU at the same time, a program that stops using one is in nobody's way there.
func TestGPUs_OneIsIdle(t *testing.T) {
	g := newGPUs(2, 33)
	b := g.start(gang{name: "a", kernel: ms, alone: true, depth: 64})
	for _, n := range g {
		n.add(program{claim: "b", kernel: ms}, part(500))
	}
	g.run(time.Second)
	b.of[1].off = true
	g.run(100 * ms)
	before := [2]time.Duration{g[0].had("b"), g[1].had("b")}
	g.run(5 * time.Second)
	must.Less(t, 0.01, math.Abs(float64(g[0].had("b")-before[0])/float64(5*time.Second)-0.5))
	must.Greater(t, 0.97, float64(g[1].had("b")-before[1])/float64(5*time.Second))
	b.of[1].kill()
	g[0].gpu.Link(g[0].now, "a", nil)
	g[1].gpu.Link(g[1].now, "a", nil)
	g.run(100 * ms)
	must.Eq(t, Open, g[1].programs[1].state)
}
