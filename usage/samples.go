package usage

import (
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/journal"
)

// Samples are what claims were seen to use. A sample covers the time since the one before it, unless that is too long ago: such
// a gap stays unobserved. Samples are lost with the process; the bill does not depend on them.
type Samples struct {
	// mostGap is the longest time that one sample covers, in milliseconds.
	mostGap int64
	last    map[claimKey]int64
	spans   map[claimKey][]span
	peaks   map[claimKey]uint64
}

// span is a time, in milliseconds since 1970, and the memory that was used in it.
type span struct {
	from, to int64
	bytes    uint64
}

// keptSamples is how long samples wait for a collection that does not succeed.
const keptSamples = int64(2 * time.Hour / time.Millisecond)

// NewSamples returns samples that are to be added once per interval.
func NewSamples(interval time.Duration) *Samples {
	return &Samples{
		mostGap: (5 * interval / 2).Milliseconds(),
		last:    map[claimKey]int64{}, spans: map[claimKey][]span{}, peaks: map[claimKey]uint64{},
	}
}

// Add adds what a claim uses at a time, and the most that it used so far.
func (s *Samples) Add(c *claim.Claim, at time.Time, usedBytes, peakBytes uint64) {
	k, now := claimKey{c.ID, journal.Milliseconds(c.Created)}, journal.Milliseconds(at)
	if before, ok := s.last[k]; ok && now > before && now-before <= s.mostGap {
		s.spans[k] = append(s.spans[k], span{before, now, usedBytes})
	}
	s.last[k] = now
	s.peaks[k] = max(s.peaks[k], usedBytes, peakBytes)
}

// between returns how much of a time was observed, in milliseconds, and the GiB that were used times the milliseconds.
func (s *Samples) between(k claimKey, from, to int64) (observed int64, used float64) {
	if s == nil {
		return 0, 0
	}
	for _, sp := range s.spans[k] {
		if overlap := min(sp.to, to) - max(sp.from, from); overlap > 0 {
			observed += overlap
			used += float64(overlap) * float64(sp.bytes) / (1 << 30)
		}
	}
	return observed, used
}

// forget drops what was accounted up to a time, and what has waited for too long.
func (s *Samples) forget(until, now int64) {
	if s == nil {
		return
	}
	old := max(until, now-keptSamples)
	for k, spans := range s.spans {
		s.spans[k] = slices.DeleteFunc(spans, func(sp span) bool { return sp.to <= old })
		if len(s.spans[k]) == 0 {
			delete(s.spans, k)
		}
	}
	for k, at := range s.last {
		if at < now-keptSamples {
			delete(s.last, k)
			delete(s.peaks, k)
		}
	}
}
