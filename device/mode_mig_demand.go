package device

import (
	"context"
	"fmt"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/mig"
)

// demandMode offers the memory of a GPU in slices, and makes of those that a
// task reserves one MIG instance: the smallest that holds them.
//
// Where instances lie decides what fits beside them. So no more slices are
// healthy, beside those in use, than the largest instance holds that can still be
// made: Nomad gives a task healthy ones only, and does not have to know why.
type demandMode struct{ *node }

func (m *demandMode) groups(g *gpu, taken *taken) []*ndevice.DeviceGroup {
	group := sliceGroup(g, taken, isolationHardware)
	if g.problem == "" {
		m.demand.room(g.UUID).mark(g, group.Devices)
	}
	return []*ndevice.DeviceGroup{group}
}

// mark leaves only those slices healthy that a task can get.
func (r *room) mark(g *gpu, slices []*ndevice.Device) {
	fit := int(r.bytes / g.sliceBytes)
	reason := fmt.Sprintf("MIG has no room for an instance of more than %d slices beside those in use", fit)
	if fit == 0 {
		reason = "MIG has no room for an instance beside those in use"
	}
	if r.unknown != "" {
		reason = "which MIG instances there are is not known: " + r.unknown
	}
	// Nomad may still count the slices of dormant claims as taken: they come last.
	for _, dormant := range []bool{false, true} {
		for _, slice := range slices {
			switch {
			case !slice.Healthy || r.kept[slice.ID] || r.dormant[slice.ID] != dormant:
			case fit > 0:
				fit--
			default:
				slice.Healthy, slice.HealthDesc = false, reason
			}
		}
	}
}

// demandProblem is why a GPU has no slices whose instances could be made.
func (g *gpu) demandProblem() string {
	switch {
	case !g.MIG.Capable:
		return "the GPU has no MIG: share it in another mode"
	case !g.MIG.Enabled && g.waits != "":
		return "MIG is not on: " + g.waits
	case !g.MIG.Enabled:
		return "MIG is not on"
	case len(g.sizes) == 0:
		return "the driver does not tell which MIG instances the GPU can have"
	}
	if err := g.checkSlice(mig.Largest(nil, g.sizes)); err != nil {
		return err.Error()
	}
	return ""
}

// checkSlice tells whether the largest instance has a slice.
func (p *policy) checkSlice(largestBytes uint64) error {
	if largestBytes >= p.sliceBytes {
		return nil
	}
	return fmt.Errorf("slice_memory is %s, but the largest MIG instance of the GPU has only %s: set it to less",
		memsize.Format(p.sliceBytes), memsize.Format(largestBytes))
}

// madeOnDemand tells whether a claim's instance was made for it.
func madeOnDemand(c *claim.Claim) bool { return c.Mode == claim.ModeMIG && c.SliceBytes > 0 }

// learnSizes asks GPUs, once each, which instances they can have: most drivers
// tell only when MIG is on. It returns whether there was anything new.
func (n *node) learnSizes(ctx context.Context) (learned bool) {
	for _, g := range n.inventory.list() {
		if !g.onDemand() || !g.answers || !g.MIG.Enabled || len(g.sizes) > 0 {
			continue
		}
		sizes, err := n.partitioner.MIGProfiles(ctx, g.UUID)
		if n.reported.changed("MIG profiles of "+g.UUID, err) && err != nil {
			n.logger.Error("cannot tell which MIG instances a GPU can have", "gpu", g.UUID, "name", g.groupName(), "error", err)
		}
		if err == nil && len(sizes) > 0 {
			n.inventory.setSizes(g.UUID, mig.Plain(sizes))
			learned = true
		}
	}
	return learned
}

// setSizes says which instances a GPU can have, and with that how many slices it
// has: as many as the largest instance holds.
func (inv *inventory) setSizes(uuid string, sizes []mig.Profile) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	g := inv.gpus[uuid]
	g.sizes = sizes
	g.slices = int(mig.Largest(nil, sizes) / g.sliceBytes)
	inv.logger.Info("MIG instances of a GPU are made on demand", "gpu", uuid, "name", g.groupName(), "slices", g.slices,
		"slice_memory", memsize.Format(g.sliceBytes))
	inv.setOwnProblem(g)
}

// setWaits says what keeps a GPU from being cut up by MIG.
func (inv *inventory) setWaits(uuid string, reason error) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	g := inv.gpus[uuid]
	g.waits = ""
	if reason != nil {
		g.waits = reason.Error()
	}
	inv.setOwnProblem(g)
}

// instancesOf are the UUIDs of the instances that claims are on.
func (n *node) instancesOf(ctx context.Context, tokens []claim.Token) ([]string, error) {
	var uuids []string
	for _, token := range tokens {
		c, err := n.ledger.Lookup(ctx, token)
		if err != nil {
			return nil, err
		}
		uuids = append(uuids, c.GPU.UUID)
	}
	return uuids, nil
}

func (m *demandMode) stats(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats {
	return claimStatistics(g, uses, now, func(id string, first bool, use *claimUse) *ndevice.DeviceStats {
		return demandStats(uses.of(use.GPU.UUID, g.UUID), id, first, use, now)
	})
}
