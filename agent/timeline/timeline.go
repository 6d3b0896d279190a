// Package timeline records how busy a node's GPUs and claims were in the last day, minute by minute. It is lost with
// the process, and nothing depends on it.
package timeline

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
)

const (
	// Step is the resolution.
	Step = time.Minute
	// Kept is how far back the time line reaches.
	Kept = 24 * time.Hour

	kept = int64(Kept / Step)
)

// Timeline is made from a monitor's snapshots. Its methods may be called concurrently; the zero value is empty.
type Timeline struct {
	mu   sync.Mutex
	gpus map[string]*line
	// claims are those that had slices in the time, by their IDs.
	claims map[string]*claimLine
}

// line is what was seen of a GPU or a claim. Its steps follow each other from the first one on.
type line struct {
	first int64 // in Steps since 1970
	steps []step
}

// step is what was seen in one Step.
type step struct {
	// seen reports whether the GPU answered, or the claim had its slices.
	seen bool
	// measured is in how many snapshots the utilization was known, and sum its sum.
	measured uint16
	sum      float32
}

type claimLine struct {
	line
	id, name, gpu string
}

// Observe adds a snapshot.
func (t *Timeline) Observe(s *monitor.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gpus == nil {
		t.gpus, t.claims = make(map[string]*line), make(map[string]*claimLine)
	}
	now := stepOf(s.Time)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.Error != "" {
			continue
		}
		var ratio *float64
		if g.GPUPercent != nil {
			part := float64(*g.GPUPercent) / 100
			ratio = &part
		}
		of(t.gpus, g.UUID).add(now, ratio)
	}
	for _, c := range s.Claims {
		if c.Holds() {
			l := of(t.claims, c.ID)
			l.id, l.gpu, l.name = c.ID, c.PhysicalGPU(), c.Workload.String()
			l.add(now, c.Utilization)
		}
	}
	t.forget(now - kept)
}

func stepOf(at time.Time) int64 { return at.Unix() / int64(Step/time.Second) }

// of returns a line, which is made if it is missing.
func of[L any](lines map[string]*L, key string) *L {
	if lines[key] == nil {
		lines[key] = new(L)
	}
	return lines[key]
}

// add adds what was seen at a step. Those before it that nobody saw stay empty. If the clock was set back, what is later by it
// now is dropped.
func (l *line) add(at int64, ratio *float64) {
	if len(l.steps) == 0 || at < l.first || at-l.last() > kept {
		l.first, l.steps = at, nil
	}
	l.steps = l.steps[:min(int64(len(l.steps)), at-l.first+1)]
	for l.last() < at {
		l.steps = append(l.steps, step{})
	}
	s := &l.steps[at-l.first]
	s.seen = true
	if ratio != nil {
		s.measured++
		s.sum += float32(*ratio)
	}
}

// last is the latest step of a line.
func (l *line) last() int64 { return l.first + int64(len(l.steps)) - 1 }

// forget removes the steps before one, and lines without others.
func (t *Timeline) forget(oldest int64) {
	for uuid, l := range t.gpus {
		if l.forget(oldest) {
			delete(t.gpus, uuid)
		}
	}
	for id, l := range t.claims {
		if l.forget(oldest) {
			delete(t.claims, id)
		}
	}
}

func (l *line) forget(oldest int64) (empty bool) {
	if old := oldest - l.first; old > 0 {
		l.first, l.steps = oldest, slices.Delete(l.steps, 0, min(len(l.steps), int(old)))
	}
	return len(l.steps) == 0
}

// Line is what was seen of a GPU or a claim, in columns of the same time.
type Line struct {
	// ID is the claim's, and Name what it is for; both are empty for a GPU.
	ID, Name string
	Columns  []Column
}

// Column is what was seen in a part of the time.
type Column struct {
	// Seen reports whether the GPU was observed, or the claim had its slices.
	Seen bool
	// Utilization is the mean from 0 to 1; nil if it is not known.
	Utilization *float64
}

// Of returns a GPU's line and those of the claims on it, the latest first, for a number of columns of whole Steps. The last
// column has the given time in it. Claims that did not have slices in that time are left out.
func (t *Timeline) Of(uuid string, now time.Time, columns int, each time.Duration) (gpu Line, claims []Line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	per := int64(each / Step)
	from := stepOf(Start(now, columns, each))
	if l := t.gpus[uuid]; l != nil {
		gpu.Columns = l.columns(from, per, columns)
	} else {
		gpu.Columns = make([]Column, columns)
	}
	var on []*claimLine
	for _, l := range t.claims {
		if l.gpu == uuid && l.last() >= from {
			on = append(on, l)
		}
	}
	slices.SortFunc(on, func(a, b *claimLine) int {
		return cmp.Or(cmp.Compare(b.last(), a.last()), cmp.Compare(b.first, a.first), cmp.Compare(a.id, b.id))
	})
	for _, l := range on {
		claims = append(claims, Line{ID: l.id, Name: l.name, Columns: l.columns(from, per, columns)})
	}
	return gpu, claims
}

// Start returns when the first of the columns begins whose last one has a time in it.
func Start(now time.Time, columns int, each time.Duration) time.Time {
	return now.Truncate(each).Add(-time.Duration(columns-1) * each)
}

func (l *line) columns(from, per int64, count int) []Column {
	all := make([]Column, count)
	for i := range all {
		measured, sum := 0, 0.0
		at := from + int64(i)*per - l.first
		for _, s := range l.steps[clamp(at, l):clamp(at+per, l)] {
			all[i].Seen = all[i].Seen || s.seen
			measured, sum = measured+int(s.measured), sum+float64(s.sum)
		}
		if measured > 0 {
			mean := sum / float64(measured)
			all[i].Utilization = &mean
		}
	}
	return all
}

// clamp returns an index of a step that the line has, or the end.
func clamp(at int64, l *line) int64 { return min(max(0, at), int64(len(l.steps))) }
