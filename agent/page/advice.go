package page

import (
	"fmt"

	"github.com/tranche-gpu/tranche/agent/monitor"
)

// headroomPercent is added to a peak before slices are counted.
const headroomPercent = 10

// need is what claims have of slices, and what they have needed so far.
type need struct {
	slices             int
	sliceBytes         uint64
	peakBytes, refused uint64
}

// needOf returns what a claim needs; false if it has no slices, or nobody counts what it uses.
func needOf(c *monitor.Claim) (need, bool) {
	if c.Usage == nil || !c.Sliced() || c.Usage.PeakBytes == 0 || c.SliceSize() == 0 {
		return need{}, false
	}
	return need{len(c.Slices), c.SliceSize(), c.Usage.PeakBytes, c.Usage.Refused}, true
}

// advice says what the slices should be; empty if they are right.
func (n need) advice() string {
	if n.refused > 0 {
		return fmt.Sprintf("Allocations were refused: more than %d slices may be needed.", n.slices)
	}
	needed := n.peakBytes + n.peakBytes*headroomPercent/100
	count := (needed + n.sliceBytes - 1) / n.sliceBytes
	if count >= uint64(n.slices) {
		return ""
	}
	return fmt.Sprintf("The peak so far, and %d%% more, would fit into %d of its %d slices.", headroomPercent, count, n.slices)
}

// adviceFor returns the advice for a claim; empty if nothing is known.
func adviceFor(c *monitor.Claim) string {
	n, known := needOf(c)
	if !known {
		return ""
	}
	return n.advice()
}
