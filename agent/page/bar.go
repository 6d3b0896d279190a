package page

import (
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/claim"
)

// Bar is the memory of a GPU, from left to right.
type Bar struct {
	// Label names the GPU. Percent is the bar's length, of the longest one's.
	Label   string
	Percent float64
	// Small bars are for pages with many of them.
	Small  bool
	Blocks []Block
}

// Block is a part of a bar. Kind names its pattern: running, reserved, dormant, outside, driver, unhealthy or free.
type Block struct {
	Kind string
	// X and Width are percents of the bar, and Used one of the block.
	X, Width, Used float64
	// Label is what fits into the block, and Text all of it.
	Label, Text string
	// Page is the address of what the block shows; empty if there is none.
	Page string
}

// Add adds a block of a width at the right, as far as there is room.
func (b *Bar) Add(width float64, k Block) {
	if n := len(b.Blocks); n > 0 {
		k.X = b.Blocks[n-1].X + b.Blocks[n-1].Width
	}
	if k.Width = min(width, 100-k.X); k.Width > 0 {
		b.Blocks = append(b.Blocks, k)
	}
}

// rest is the part of a bar, in percent, that has no block yet.
func (b *Bar) rest() float64 {
	if n := len(b.Blocks); n > 0 {
		return 100 - b.Blocks[n-1].X - b.Blocks[n-1].Width
	}
	return 100
}

// bar is a GPU as a bar whose length is its memory.
type bar struct {
	*monitor.GPU
	Bar
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
	b := bar{g, Bar{Label: "GPU " + text.Index(g.Index), Percent: percent}}
	whole := float64(lengthOf(s, g))
	add := func(kind string, part float64, k Block) {
		k.Kind = kind
		b.Add(100*part/whole, k)
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
	rest := plainBlock("free", uint64(max(0, whole*b.rest()/100)))
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

func claimBlock(c *monitor.Claim) Block {
	k := Block{Page: "/claim/" + c.ID, Label: nameOf(c), Text: fmt.Sprintf("%s, claim %s, %s", nameOf(c), c.ID, c.State)}
	if c.Limited() {
		k.Text += ", limit " + text.Bytes(c.LimitBytes)
	}
	if c.Usage != nil {
		k.Text += ", " + text.Bytes(c.Usage.UsedBytes) + " used"
		k.Used = percentOf(c.Usage.UsedBytes, c.LimitBytes)
	}
	return k
}

func plainBlock(what string, bytes uint64) Block {
	return Block{Label: what, Text: text.Bytes(bytes) + " " + what}
}

// percentOf returns a part of a whole in percent, at most 100.
func percentOf(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return min(100, 100*float64(part)/float64(whole))
}
