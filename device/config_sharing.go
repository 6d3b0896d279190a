package device

import (
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// sharing is how the configuration shares the GPUs of a node.
type sharing struct {
	// others is for GPUs that no block matches.
	others share.Policy
	// blocks are in the order of the configuration.
	blocks []gpuBlock
}

// parseSharing validates the options of sharing, outside and inside of gpu blocks.
func (c Config) parseSharing() (sharing, error) {
	defaults, err := c.defaultSharing()
	if err != nil {
		return sharing{}, err
	}
	if _, err := parseSliceMemory(c.SliceMemory); err != nil {
		return sharing{}, err // blocks inherit it
	}
	all := defaults
	if !all.hasSlices() {
		all.SliceMemory = ""
	}
	var s sharing
	if s.others, err = all.parse(); err != nil {
		return sharing{}, err
	}
	if s.blocks, err = parseGPUBlocks(c.GPU, defaults); err != nil {
		return sharing{}, err
	}
	return s, s.checkTwice()
}

// defaultSharing returns the options outside of blocks.
func (c Config) defaultSharing() (sharingOptions, error) {
	defaults := sharingOptions{Mode: c.Mode, SliceMemory: c.SliceMemory, Compute: c.Compute, Enforcement: c.Enforcement}
	if c.Replicas != nil {
		replicas, err := wholeNumber("replicas", *c.Replicas)
		if err != nil {
			return defaults, err
		}
		defaults.Replicas = &replicas
	}
	if c.MIG == nil {
		return defaults, nil
	}
	mig, err := decodeSharing(map[string]any{"mig": c.MIG})
	defaults.MIG = mig.MIG
	return defaults, err
}

// checkTwice refuses two blocks with the same selector, of which only one could count.
func (s *sharing) checkTwice() error {
	for i := range s.blocks {
		for j := range s.blocks[:i] {
			if s.blocks[i].gpus == s.blocks[j].gpus {
				return fmt.Errorf("%s: an earlier block, %s, names the same; remove one of them", &s.blocks[i], &s.blocks[j])
			}
		}
	}
	return nil
}

// block returns the first block that matches a GPU; nil if none does.
func (s *sharing) block(g nvml.GPU) *gpuBlock {
	i := slices.IndexFunc(s.blocks, func(b gpuBlock) bool { return b.matches(g) })
	if i < 0 {
		return nil
	}
	return &s.blocks[i]
}

// of returns how a GPU is shared.
func (s *sharing) of(g nvml.GPU) share.Policy {
	if block := s.block(g); block != nil {
		return block.Policy
	}
	return s.others
}

func (b *gpuBlock) matches(g nvml.GPU) bool {
	return b.gpus.Matches(gpuinfo.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, PCIBusID: g.PCIBusID})
}

// idle returns an error for each block that has no effect on this node.
func (s *sharing) idle(gpus []nvml.GPU) []error {
	var wrong []error
	for i := range s.blocks {
		b := &s.blocks[i]
		matching := slices.DeleteFunc(slices.Clone(gpus), func(g nvml.GPU) bool { return !b.matches(g) })
		if len(matching) == 0 {
			if !b.optional {
				wrong = append(wrong, fmt.Errorf("%s matches no GPU of this node: %s; correct it, remove it, or set "+
					"optional = true in it", b, describeGPUs(gpus)))
			}
			continue
		}
		if !slices.ContainsFunc(matching, func(g nvml.GPU) bool { return s.block(g) == b }) {
			wrong = append(wrong, fmt.Errorf("%s has no effect: earlier blocks match all its GPUs (%s first); remove it, or "+
				"put it before them", b, s.block(matching[0])))
		}
	}
	return wrong
}

// anyShares reports whether claims on some GPUs compute in turns.
func (s *sharing) anyShares() bool {
	return s.others.AnyShares() || slices.ContainsFunc(s.blocks, func(b gpuBlock) bool { return b.AnyShares() })
}

// where returns the option or block that determines how a GPU is shared.
func (s *sharing) where(g nvml.GPU) string {
	if block := s.block(g); block != nil {
		return block.String()
	}
	return "mode"
}

func describeGPUs(gpus []nvml.GPU) string {
	if len(gpus) == 0 {
		return "it has none"
	}
	text := "it has "
	for i, g := range gpus {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d: %s (%s, %s)", g.Index, g.Name, g.UUID, g.PCIBusID)
	}
	return text
}
