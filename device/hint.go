package device

import "github.com/tranche-gpu/tranche/claim"

const (
	// hintAttribute says how full a GPU is, for jobs that want the fullest one on
	// which they fit. It begins with "unique." to stay out of the node's class.
	hintAttribute = "unique.slices_used"

	// hintSteps is in how many steps it counts.
	hintSteps = 8
)

// inSteps rounds how many of a GPU's slices are used up to the next step; 0 is
// for none alone.
func inSteps(used, slices int) int64 {
	if slices <= hintSteps {
		return int64(used)
	}
	step := (used*hintSteps + slices - 1) / slices
	return int64((step*slices + hintSteps - 1) / hintSteps)
}

// addUsed notes what a claim has that lives or is about to, or that keeps slices
// from Nomad.
func (n *node) addUsed(taken *taken, c *claim.Claim) {
	if !outsideNomad(c) && !n.holds(c) {
		return
	}
	g, known := n.inventory.find(c.PhysicalGPU())
	if !known || !g.sliced() {
		return
	}
	if c.SliceSize() == g.sliceBytes {
		for _, slice := range c.Slices {
			taken.used[slice] = true
		}
		return
	}
	for number := range g.slices {
		if c.Covers(g.UUID, number, g.sliceBytes) {
			taken.used[g.sliceID(number)] = true
		}
	}
}

// usedSlices counts the slices that claims have, in steps, by GPU.
func (n *node) usedSlices(taken *taken) map[string]int64 {
	all := make(map[string]int64)
	for _, g := range n.inventory.list() {
		if !g.sliced() {
			continue
		}
		used := 0
		for number := range g.slices {
			if taken.used[g.sliceID(number)] {
				used++
			}
		}
		all[g.UUID] = inSteps(used, g.slices)
	}
	return all
}
