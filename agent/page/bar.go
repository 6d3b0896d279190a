package page

import (
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/claim"
)

// bar is a GPU as a bar whose length is its memory.
type bar struct {
	*monitor.GPU
	// Percent is its length, of the longest one's.
	Percent float64
	Blocks  []block
}

// block is a part of a bar. Kind names its pattern: running, reserved, dormant, outside, driver, unhealthy or free.
type block struct {
	Kind string
	// X and Width are percents of the bar, and Used one of the block.
	X, Width, Used float64
	// Label is what fits into the block, and Text all of it.
	Label, Text string
	// ID is the claim's; empty if the block is none.
	ID string
}

// barsOf returns the bars of all GPUs, to scale. One whose memory is unknown is as long as the longest.
func barsOf(s *monitor.Snapshot) []bar {
	var most uint64
	for i := range s.GPUs {
		if known := s.GPUs[i].MemoryBytes; known != nil {
			most = max(most, *known)
		}
	}
	var bars []bar
	for i := range s.GPUs {
		g := &s.GPUs[i]
		percent := 100.0
		if g.MemoryBytes != nil {
			percent = percentOf(*g.MemoryBytes, most)
		}
		bars = append(bars, barOf(s, g, percent))
	}
	return bars
}

// lengthOf returns the memory of a GPU, or as much as is known of it.
func lengthOf(s *monitor.Snapshot, g *monitor.GPU) uint64 {
	if g.MemoryBytes != nil {
		return *g.MemoryBytes
	}
	return max(1, s.ReservedBytes(g.UUID))
}

func barOf(s *monitor.Snapshot, g *monitor.GPU, percent float64) bar {
	b := bar{GPU: g, Percent: percent}
	whole := float64(lengthOf(s, g))
	at := 0.0
	add := func(kind string, part float64, k block) {
		k.Kind, k.X, k.Width = kind, at, min(100*part/whole, 100-at)
		if k.Width > 0 {
			at += k.Width
			b.Blocks = append(b.Blocks, k)
		}
	}
	on := slices.DeleteFunc(s.On(g.UUID), func(c *monitor.Claim) bool { return c.State == claim.StateEnded })
	for _, c := range on {
		if c.State != claim.StateDormant {
			add(string(c.State), partOf(c, on, whole), claimBlock(c))
		}
	}
	for _, c := range on {
		if c.State == claim.StateDormant {
			add("dormant", partOf(c, on, whole), claimBlock(c))
		}
	}
	if g.OutsideBytes != nil && *g.OutsideBytes > 0 {
		add("outside", float64(*g.OutsideBytes), plainBlock("outside claims", *g.OutsideBytes))
	}
	if g.DriverBytes != nil && *g.DriverBytes > 0 {
		add("driver", float64(*g.DriverBytes), plainBlock("driver", *g.DriverBytes))
	}
	rest := plainBlock("free", uint64(max(0, whole*(100-at)/100)))
	switch {
	case g.Error != "":
		rest.Label, rest.Text = "does not answer", "The GPU does not answer."
		add("unhealthy", whole, rest)
	case g.Unhealthy != nil:
		rest.Label = "unhealthy"
		rest.Text = "Unhealthy: " + rest.Text
		add("unhealthy", whole, rest)
	default:
		add("free", whole, rest)
	}
	return b
}

// partOf returns the part of a GPU that a claim has. Claims that share its time without limits are drawn as equal parts.
func partOf(c *monitor.Claim, on []*monitor.Claim, whole float64) float64 {
	if c.Mode == claim.ModeTimeslice {
		return whole / float64(len(on))
	}
	return float64(c.LimitBytes)
}

func claimBlock(c *monitor.Claim) block {
	k := block{ID: c.ID, Label: nameOf(c), Text: fmt.Sprintf("%s, claim %s, %s", nameOf(c), c.ID, c.State)}
	if c.Limited() {
		k.Text += ", limit " + text.Bytes(c.LimitBytes)
	}
	if c.Usage != nil {
		k.Text += ", " + text.Bytes(c.Usage.UsedBytes) + " used"
		k.Used = percentOf(c.Usage.UsedBytes, c.LimitBytes)
	}
	return k
}

func plainBlock(what string, bytes uint64) block {
	return block{Label: what, Text: text.Bytes(bytes) + " " + what}
}

// percentOf returns a part of a whole in percent, at most 100.
func percentOf(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return min(100, 100*float64(part)/float64(whole))
}
