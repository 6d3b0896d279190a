package shares

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// Window is what happened on the first GPU between two readings of the record.
type Window struct {
	// Length is the time between the readings, which took some milliseconds each.
	Length time.Duration
	// Busy is the GPU time that each load had, and Overlap the time in which it had work ready while the GPU worked for another.
	Busy, Overlap map[string]time.Duration
	// Switches is how often the GPU changed from one process to another.
	Switches uint64
}

// reading is the record at one time.
type reading struct {
	at     time.Time
	record *node.Record
}

func (n *Node) read(ctx context.Context) (reading, error) {
	began := time.Now()
	record, err := n.sim.Record(ctx)
	return reading{began.Add(time.Since(began) / 2), record}, err
}

// Watch reads the record now and after d, and returns what was between.
func (n *Node) Watch(ctx context.Context, d time.Duration) (Window, error) {
	return n.Over(ctx, func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	})
}

// Over returns what happened while f ran.
func (n *Node) Over(ctx context.Context, f func() error) (w Window, err error) {
	before, err := n.read(ctx)
	if err != nil {
		return w, err
	}
	if err := f(); err != nil {
		return w, err
	}
	after, err := n.read(ctx)
	if err != nil {
		return w, err
	}
	return between(before, after), nil
}

func between(before, after reading) Window {
	w := Window{
		Length: after.at.Sub(before.at), Busy: map[string]time.Duration{}, Overlap: map[string]time.Duration{},
		Switches: after.record.GPUs[0].Switches - before.record.GPUs[0].Switches,
	}
	add := func(r reading, sign time.Duration) {
		for _, g := range r.record.Groups {
			if g.GPUUUID == r.record.GPUs[0].UUID {
				w.Busy[g.Group] += sign * time.Duration(g.BusyNS)
				w.Overlap[g.Group] += sign * time.Duration(g.OverlapNS)
			}
		}
	}
	add(after, 1)
	add(before, -1)
	return w
}

// Total is all of the GPU time that was used.
func (w Window) Total() (sum time.Duration) {
	for _, busy := range w.Busy {
		sum += busy
	}
	return sum
}

// Part is a load's part of the GPU time that was used, in percent.
func (w Window) Part(name string) float64 { return 100 * float64(w.Busy[name]) / float64(w.Total()) }

// Used is the part of the window's time in which the GPU worked, in percent.
func (w Window) Used() float64 { return 100 * float64(w.Total()) / float64(w.Length) }

// Error is how far the parts are from these shares at most, in points. Shares count in proportion.
func (w Window) Error(shares map[string]float64) (worst float64) {
	var sum float64
	for _, share := range shares {
		sum += share
	}
	for name, share := range shares {
		worst = max(worst, math.Abs(w.Part(name)-100*share/sum))
	}
	return worst
}

// String lists what each load had.
func (w Window) String() string {
	text := fmt.Sprintf("%.3f s, GPU used %.2f percent, %d switches:", w.Length.Seconds(), w.Used(), w.Switches)
	for name, busy := range w.Busy {
		if busy > 0 {
			text += fmt.Sprintf(" %s %.2f percent (overlap %.2f)", name, w.Part(name), 100*float64(w.Overlap[name])/float64(w.Length))
		}
	}
	return text
}
