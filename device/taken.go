package device

import (
	"context"
	"errors"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
)

// taken is what somebody outside Nomad has, and the claim that says so.
type taken struct {
	bySlice map[string]*claim.Claim
	byGPU   map[string]*claim.Claim
	// earlier is what Nomad's own claims from before a change of the
	// configuration still have: GPUs that were shared in another mode, and slices
	// that were of another size.
	earlier map[string]*claim.Claim
	// used are the slices that any claim has.
	used map[string]bool
	// unusable is why no claim can be made; empty if nothing is known to be in the way.
	unusable string
	calm     *calm
}

// known is what the ledger held when it was read last. It belongs to the fingerprint.
type known struct {
	claims []*claim.Claim
	read   bool
}

// takenElsewhere finds what somebody outside Nomad uses, and how full the GPUs are. What a ledger held that cannot be read
// any more holds on.
func (n *node) takenElsewhere(ctx context.Context) *taken {
	taken := &taken{
		bySlice: make(map[string]*claim.Claim), byGPU: make(map[string]*claim.Claim), earlier: make(map[string]*claim.Claim),
		used: make(map[string]bool), calm: &calm{},
	}
	claims, problems, err := n.ledger.List(ctx)
	if ctx.Err() != nil {
		return taken
	}
	if n.reported.changed("reading the ledger", err) && err != nil {
		n.logger.Error("could not read the ledger", "state_dir", n.stateDir, "error", err)
	}
	for _, problem := range problems {
		if n.reported.changed(problem.Path, errors.New(problem.Reason)) {
			n.logger.Warn("the ledger holds a file that is no claim", "file", problem.Path, "reason", problem.Reason)
		}
	}
	if err == nil {
		n.known = known{claims, true}
	}
	taken.unusable = n.unusable(ctx, err)
	for _, c := range n.known.claims {
		n.addUsed(taken, c)
		if outsideNomad(c) {
			n.addTaken(taken, c)
		} else if n.holds(c) || n.computesUnbound(ctx, c) {
			n.addEarlier(taken, c)
		}
	}
	taken.calm.used = n.usedSlices(taken)
	taken.calm.withheld = n.withheldSlices(taken)
	return taken
}

// unusable is why no claim can be made; empty if nothing is known to be in the way. As long as the ledger could not be read
// once, nobody knows which devices are free.
func (n *node) unusable(ctx context.Context, err error) string {
	if err == nil || n.known.read {
		err = n.ledger.CheckUsable(ctx)
	}
	if n.reported.changed("use of the ledger", err) && err != nil {
		n.logger.Error("no claim can be made, so that all devices are unhealthy", "state_dir", n.stateDir, "run_dir", n.runDir,
			"error", err)
	}
	if err == nil {
		return ""
	}
	return "no claim can be made: " + err.Error()
}

// setUnusable says on healthy devices that no claim can be made.
func (t *taken) setUnusable(group *ndevice.DeviceGroup) {
	for _, d := range group.Devices {
		if t.unusable != "" && d.Healthy {
			d.Healthy, d.HealthDesc = false, t.unusable
		}
	}
}

// computesUnbound tells whether a claim on a whole GPU or an instance that is
// shared in another way now may be in use although no container is bound to it:
// NVIDIA's runtime binds none, so that it counts as long as anything computes there.
func (n *node) computesUnbound(ctx context.Context, c *claim.Claim) bool {
	g, known := n.inventory.find(c.PhysicalGPU())
	whole := c.Mode == claim.ModeExclusive || c.Mode == claim.ModeMIG
	if !known || !whole || c.Container != nil || c.Mode == g.mode || !g.answers {
		return false
	}
	bounded, cancel := context.WithTimeout(ctx, n.nvmlTimeout)
	defer cancel()
	processes, err := n.nvml.Processes(bounded, c.GPU.UUID)
	return err == nil && len(processes) > 0
}

// addEarlier notes what a claim of Nomad's has that does not fit how its GPU is
// shared now. The task keeps it; what it stands in the way of waits.
func (n *node) addEarlier(taken *taken, c *claim.Claim) {
	g, known := n.inventory.find(c.PhysicalGPU())
	asFound := c.Mode == claim.ModeMIG && g.MIG.Enabled && g.mode == claim.ModeExclusive
	switch {
	case known && madeOnDemand(c) && !g.onDemand() && (asFound || c.Mode == g.mode):
		taken.earlier[c.GPU.UUID] = c // which is offered as an instance like others
	case !known || asFound:
	case c.Mode != g.mode:
		taken.earlier[g.UUID] = c
		if n.reported.changed("claim "+c.ID, errWaits) {
			n.logger.Warn("a GPU takes on its new mode when a task that has it in another one has ended",
				"gpu", g.UUID, "mode", string(g.mode), "claim", c.ID, "mode_of_the_claim", string(c.Mode))
		}
	case g.sliced() && c.SliceSize() != g.sliceBytes:
		for number := range g.slices {
			if c.Covers(g.UUID, number, g.sliceBytes) {
				taken.earlier[g.sliceID(number)] = c
			}
		}
	}
}

// errWaits is what is remembered of a claim that something waits for.
var errWaits = errors.New("something waits for it")

// outsideNomad tells whether a claim keeps its slices from Nomad. One that a container asked for itself does from the
// moment it is made.
func outsideNomad(c *claim.Claim) bool {
	switch c.Owner {
	case claim.OwnerNomad:
		return false
	case claim.OwnerExternal:
		return true
	}
	return c.Container != nil && c.Released.IsZero()
}

// addTaken notes what a claim has. Where it goes by slices of another size than
// the GPU, those are taken that have some of its memory.
func (n *node) addTaken(taken *taken, c *claim.Claim) {
	taken.byGPU[c.PhysicalGPU()] = c
	g, _ := n.inventory.find(c.PhysicalGPU())
	if c.SliceBytes == 0 || c.SliceBytes == g.sliceBytes {
		for _, slice := range c.Slices {
			taken.bySlice[slice] = c
		}
		return
	}
	if !g.sliced() {
		return
	}
	if n.reported.changed("slices of another size", errors.New(memsize.Format(c.SliceBytes))) {
		n.logger.Error("a claim goes by slices of another size: set slice_memory to the same in the plugin's options and "+
			"in the configuration file of tranche-runtime", "claim", c.ID, "owner", c.Owner,
			"slice_memory", memsize.Format(g.sliceBytes), "slice_memory_of_the_claim", memsize.Format(c.SliceBytes))
	}
	for number := range g.slices {
		if c.Covers(g.UUID, number, g.sliceBytes) {
			taken.bySlice[g.sliceID(number)] = c
		}
	}
}
