package device

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/changelog"
	"github.com/tranche-gpu/tranche/internal/size"
)

// externalUse finds out which devices claims keep from Nomad. It belongs to the fingerprint loop.
type externalUse struct {
	settings  *settings
	driver    *share.Driver
	ledger    *share.Ledger
	inventory *inventory
	logger    hclog.Logger
	log       changelog.Log

	// claims are the ledger's when it was read last; read is whether it was read at all.
	claims []*claim.Claim
	read   bool
}

// errWaits is recorded for a claim that something waits for.
var errWaits = errors.New("something waits for it")

// occupancy returns which devices claims use. While the ledger cannot be read, its last contents count.
func (e *externalUse) occupancy(ctx context.Context) *share.Occupancy {
	o := share.NewOccupancy()
	claims, problems, err := e.ledger.List(ctx)
	if ctx.Err() != nil {
		return o
	}
	if e.log.Changed("reading the ledger", err) && err != nil {
		e.logger.Error("cannot read the ledger", "state_dir", e.settings.stateDir, "error", err)
	}
	for _, problem := range problems {
		if e.log.Changed(problem.Path, errors.New(problem.Reason)) {
			e.logger.Warn("the ledger holds a file that is no claim", "file", problem.Path, "reason", problem.Reason)
		}
	}
	if err == nil {
		e.claims, e.read = claims, true
	}
	o.LedgerProblem = e.ledgerProblem(ctx, err)
	for _, c := range e.claims {
		inUse := e.ledger.InUse(c)
		if external(c) || inUse {
			e.addUsed(o, c)
		}
		if external(c) {
			e.addExternal(o, c)
		} else if inUse || e.computesUnbound(ctx, c) {
			e.addEarlier(o, c)
		}
	}
	if e.settings.packingHint {
		o.Deferrable.SlicesUsed = e.slicesUsed(o)
	}
	return o
}

// ledgerProblem returns why no claim can be made, given the outcome of reading the ledger; empty if there is no such
// reason. Until the ledger was read once, it is not known which devices are free.
func (e *externalUse) ledgerProblem(ctx context.Context, err error) string {
	if err == nil || e.read {
		err = e.ledger.CheckUsable(ctx)
	}
	if e.log.Changed("use of the ledger", err) && err != nil {
		e.logger.Error("no claim can be made, so that all devices are unhealthy", "state_dir", e.settings.stateDir,
			"run_dir", e.settings.runDir, "error", err)
	}
	if err == nil {
		return ""
	}
	return "no claim can be made: " + err.Error()
}

// external reports whether a claim keeps its slices from Nomad. A claim that a container has requested itself does from
// the moment it is made.
func external(c *claim.Claim) bool {
	switch c.Owner {
	case claim.OwnerNomad:
		return false
	case claim.OwnerExternal:
		return true
	}
	return c.Container != nil && c.Released.IsZero()
}

// addExternal adds what a claim from outside Nomad uses. If its slices have another size than the GPU's, all slices are
// used that have some of its memory.
func (e *externalUse) addExternal(o *share.Occupancy, c *claim.Claim) {
	o.ExternalGPUs[c.PhysicalGPU()] = c
	g, known := e.inventory.find(c.PhysicalGPU())
	if !known && e.onInstance(c) {
		o.Earlier[c.GPU.UUID] = c // which several tasks shared
	}
	if c.SliceBytes == 0 || c.SliceBytes == g.SliceBytes {
		for _, slice := range c.Slices {
			o.ExternalSlices[slice] = c
		}
		return
	}
	if !g.Sliced() {
		return
	}
	if e.log.Changed("slices of another size", errors.New(size.Format(c.SliceBytes))) {
		e.logger.Error("a claim has slices of another size: set slice_memory to the same in the plugin's options and "+
			"in the configuration file of tranche-runtime", "claim", c.ID, "owner", c.Owner,
			"slice_memory", size.Format(g.SliceBytes), "slice_memory_of_the_claim", size.Format(c.SliceBytes))
	}
	for _, slice := range covered(&g, c) {
		o.ExternalSlices[slice] = c
	}
}

// covered returns the slices of a GPU that have some of a claim's memory.
func covered(g *share.GPU, c *claim.Claim) []string {
	var ids []string
	for number := range g.SliceCount {
		if c.Covers(g.UUID, number, g.SliceBytes) {
			ids = append(ids, g.SliceID(number))
		}
	}
	return ids
}

// addEarlier adds what a claim of Nomad's uses if it does not fit how its GPU is shared now. The task keeps it, and the
// devices that need it wait.
func (e *externalUse) addEarlier(o *share.Occupancy, c *claim.Claim) {
	g, known := e.inventory.find(c.PhysicalGPU())
	asFound := c.Mode == claim.ModeMIG && g.MIG.Enabled && g.Mode == claim.ModeExclusive
	differs := share.MadeOnDemand(c) || g.Instances != nil // from how an instance is offered now
	switch {
	case !known && e.onInstance(c):
		o.Earlier[c.GPU.UUID] = c // which several tasks shared
	case known && differs && !g.OnDemand() && (asFound || c.Mode == g.Mode):
		o.Earlier[c.GPU.UUID] = c // which is offered as an instance like others
	case !known || asFound:
	case c.Mode != g.Mode:
		o.Earlier[g.UUID] = c
		if e.log.Changed("claim "+c.ID, errWaits) {
			e.logger.Warn("a GPU changes its mode when a task that uses it in another mode has ended",
				"gpu", g.UUID, "mode", string(g.Mode), "claim", c.ID, "mode_of_the_claim", string(c.Mode))
		}
	case g.Sliced() && c.SliceSize() != g.SliceBytes:
		for _, slice := range covered(&g, c) {
			o.Earlier[slice] = c
		}
	}
}

// onInstance reports whether a claim is on a MIG instance of one of the node's GPUs.
func (e *externalUse) onInstance(c *claim.Claim) bool {
	_, ok := e.inventory.owner(c.GPU.UUID)
	return ok
}

// computesUnbound reports whether a claim without a container may be in use on a whole GPU or MIG instance that is in
// another mode now: NVIDIA's runtime binds no container, so the claim counts as long as any process computes there.
func (e *externalUse) computesUnbound(ctx context.Context, c *claim.Claim) bool {
	g, known := e.inventory.find(c.PhysicalGPU())
	whole := c.Mode == claim.ModeExclusive || c.Mode == claim.ModeMIG
	if !known || !whole || c.Container != nil || c.Mode == g.Mode || !g.Answers {
		return false
	}
	bounded, cancel := e.driver.Limit(ctx)
	defer cancel()
	processes, err := e.driver.Processes(bounded, c.GPU.UUID)
	return err == nil && len(processes) > 0
}

// addUsed adds the slices of a claim that is in use or keeps them from Nomad.
func (e *externalUse) addUsed(o *share.Occupancy, c *claim.Claim) {
	g, known := e.inventory.find(c.PhysicalGPU())
	if !known || !g.Sliced() {
		return
	}
	slices := c.Slices
	if c.SliceSize() != g.SliceBytes {
		slices = covered(&g, c)
	}
	for _, slice := range slices {
		o.Used[slice] = true
	}
}

// slicesUsed counts the slices that claims use, in steps, by GPU.
func (e *externalUse) slicesUsed(o *share.Occupancy) map[string]int64 {
	all := make(map[string]int64)
	for _, g := range e.inventory.list() {
		if !g.Sliced() {
			continue
		}
		used := 0
		for number := range g.SliceCount {
			if o.Used[g.SliceID(number)] {
				used++
			}
		}
		all[g.UUID] = inSteps(used, g.SliceCount)
	}
	return all
}

// usedSteps is the number of steps in which used slices are counted.
const usedSteps = 8

// inSteps rounds the number of used slices up to the next step. It returns 0 only if none is used.
func inSteps(used, slices int) int64 {
	if slices <= usedSteps || used == 0 {
		return int64(used)
	}
	step := (used-1)*usedSteps/slices + 1
	return int64((step*slices + usedSteps - 1) / usedSteps)
}
