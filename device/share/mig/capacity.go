package mig

import (
	"fmt"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/share"
)

// capacity is what a GPU with on-demand instances has room for.
type capacity struct {
	// largestBytes is the memory of the largest instance that can still be created.
	largestBytes uint64
	// kept are the slices of claims in use, dormant those of dormant claims.
	kept, dormant map[string]bool
	// unknown is why nothing is known; empty if it is.
	unknown string
}

// capacity returns what is left on a GPU.
func (s *state) capacity(sizes []mig.Profile) *capacity {
	c := &capacity{largestBytes: mig.Largest(s.occupied, sizes), kept: make(map[string]bool), dormant: make(map[string]bool)}
	for _, claim := range s.kept {
		for _, slice := range claim.Slices {
			c.kept[slice] = true
		}
	}
	for _, claim := range s.dormant {
		for _, slice := range claim.Slices {
			c.dormant[slice] = true
		}
	}
	return c
}

// mark leaves only those slices healthy that a task can get.
func (c *capacity) mark(g *share.GPU, slices []*ndevice.Device) {
	fit := int(c.largestBytes / g.SliceBytes)
	reason := fmt.Sprintf("MIG has no room for an instance of more than %d slices beside those in use", fit)
	if fit == 0 {
		reason = "MIG has no room for an instance beside those in use"
	}
	if c.unknown != "" {
		reason = "the MIG instances of the GPU are not known: " + c.unknown
	}
	// Nomad may still count the slices of dormant claims as used: they come last.
	for _, dormant := range []bool{false, true} {
		for _, slice := range slices {
			switch {
			case !slice.Healthy || c.kept[slice.ID] || c.dormant[slice.ID] != dormant:
			case fit > 0:
				fit--
			default:
				slice.Healthy, slice.HealthDesc = false, reason
			}
		}
	}
}
