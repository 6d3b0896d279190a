package device

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/runtime/nodeinfo"
)

// sharing is how the GPUs of a node are shared, as the configuration says.
type sharing struct {
	// others is for GPUs that no block matches.
	others policy
	// blocks are in the order in which they stand.
	blocks []gpuBlock
}

// parseSharing reads how GPUs are shared.
func (c Config) parseSharing() (sharing, error) {
	defaults, err := c.defaultSharing()
	if err != nil {
		return sharing{}, err
	}
	if _, err := parseSliceMemory(c.SliceMemory); err != nil {
		return sharing{}, err // it is also for the blocks
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

// defaultSharing are the options outside of blocks.
func (c Config) defaultSharing() (sharingOptions, error) {
	defaults := sharingOptions{Mode: c.Mode, SliceMemory: c.SliceMemory}
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

// checkTwice refuses two blocks that name GPUs in the same words: only one of them can count.
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

// block is the first block that matches a GPU; nil if none does.
func (s *sharing) block(g nvml.GPU) *gpuBlock {
	i := slices.IndexFunc(s.blocks, func(b gpuBlock) bool { return b.matches(g) })
	if i < 0 {
		return nil
	}
	return &s.blocks[i]
}

// of is how a GPU is shared.
func (s *sharing) of(g nvml.GPU) policy {
	if block := s.block(g); block != nil {
		return block.policy
	}
	return s.others
}

func (b *gpuBlock) matches(g nvml.GPU) bool {
	return b.gpus.Matches(nodeinfo.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, PCIBusID: g.PCIBusID})
}

// idle lists what is wrong with blocks that no GPU of the node is shared by.
func (s *sharing) idle(gpus []nvml.GPU) []error {
	var wrong []error
	for i := range s.blocks {
		b := &s.blocks[i]
		matching := slices.DeleteFunc(slices.Clone(gpus), func(g nvml.GPU) bool { return !b.matches(g) })
		if len(matching) == 0 {
			if !b.optional {
				wrong = append(wrong, fmt.Errorf("%s matches no GPU of this node: %s; correct it, remove it, or say "+
					"optional = true in it", b, describeGPUs(gpus)))
			}
			continue
		}
		if !slices.ContainsFunc(matching, func(g nvml.GPU) bool { return s.block(g) == b }) {
			wrong = append(wrong, fmt.Errorf("%s never counts: earlier blocks match all its GPUs (%s first); remove it, or "+
				"put it before them", b, s.block(matching[0])))
		}
	}
	return wrong
}

// checkGPUs asks the driver whether the configuration fits the GPUs. Where it
// cannot tell about all of them, that is said, and no fault of the configuration.
func (n *node) checkGPUs() error {
	if how := n.sharing.others.mode; len(n.sharing.blocks) == 0 && how != claim.ModeMIG && how != claim.ModeMPS &&
		n.settings.contextBytes == 0 {
		return nil // any GPU can be shared so
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.nvmlTimeout)
	defer cancel()
	found, err := n.nvml.Read(ctx)
	if err != nil {
		n.logger.Warn("cannot tell whether the gpu blocks fit the GPUs", "error", err)
		return nil
	}
	if len(found.Failed) > 0 {
		n.logger.Warn("cannot tell whether the gpu blocks fit the GPUs: some do not answer", "failed", len(found.Failed))
		return nil
	}
	return errors.Join(append(n.sharing.idle(found.GPUs), n.impossible(ctx, found.GPUs)...)...)
}

// reportIdle logs the blocks that no GPU is shared by.
func (n *node) reportIdle(found *nvml.Node) {
	if len(found.Failed) > 0 {
		return
	}
	err := errors.Join(n.sharing.idle(found.GPUs)...)
	if n.reported.changed("gpu blocks", err) && err != nil {
		n.logger.Error("gpu blocks do not fit the GPUs of this node", "error", err)
	}
}

// impossible lists what is wanted of GPUs that they cannot be.
func (n *node) impossible(ctx context.Context, gpus []nvml.GPU) []error {
	var wrong []error
	for _, g := range gpus {
		how := n.sharing.of(g)
		var err error
		switch how.mode {
		case claim.ModeMIG:
			err = n.checkMIG(ctx, g, how)
		case claim.ModeMPS:
			err = n.checkMPS(g)
		}
		if err == nil {
			err = n.checkContext(g, how)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: the GPU %d, %s (%s), cannot be in mode %q: %w", n.sharing.where(g), g.Index,
				g.Name, g.UUID, how.mode, err))
		}
	}
	return wrong
}

// checkContext tells whether a GPU with slices has room for a context, if it is known what one takes.
func (s *settings) checkContext(g nvml.GPU, how policy) error {
	if !how.sliced() || s.contextBytes < g.UsableBytes() {
		return nil
	}
	return fmt.Errorf("context_memory is %s, but the GPU has only %s for processes: set it to less, or to %q",
		memsize.Format(s.contextBytes), memsize.Format(g.UsableBytes()), autoContextMemory)
}

// checkMIG tells whether a GPU can have instances of all the profiles, or one that has a slice, by what is known of its
// model. The driver tells of profiles only while MIG is on: by what it says, a configuration that was accepted before
// would end a later start. So it can only allow what the table does not know of, and what turns out to be impossible
// later makes the GPU's devices unhealthy.
func (n *node) checkMIG(ctx context.Context, g nvml.GPU, how policy) error {
	if !g.MIG.Capable {
		return errors.New("it has no MIG")
	}
	model, known := mig.ModelOf(g.Name, g.MemoryBytes)
	if !known {
		return nil
	}
	wrong := how.checkInstances(model)
	if wrong == nil {
		return nil
	}
	profiles, err := n.partitioner.MIGProfiles(ctx, g.UUID)
	if err != nil || len(profiles) == 0 {
		return wrong
	}
	return how.checkInstances(mig.Model{Profiles: profiles, LargestBytes: mig.Largest(nil, mig.Plain(profiles))})
}

// checkInstances tells whether a GPU can be cut up as the policy says.
func (p *policy) checkInstances(model mig.Model) error {
	if p.onDemand() {
		return p.checkSlice(model.LargestBytes)
	}
	wanted, err := model.Named(p.profiles)
	if err != nil {
		return err
	}
	if _, ok := mig.Pack(nil, wanted); !ok {
		return errNoFit
	}
	return nil
}

// where is what in the configuration says how a GPU is shared.
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
