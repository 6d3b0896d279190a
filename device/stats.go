package device

import (
	"context"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"tranche.dev/tranche/claim"
)

// stats sends statistics until the context ends. What can't be found out is
// left out of a message: an error would end the statistics of all GPUs for a
// while.
func (m *sliceMode) stats(ctx context.Context, out chan<- *ndevice.StatsResponse, interval time.Duration) {
	defer close(out)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		// Looking for a driver where there was none is left to the fingerprint:
		// each attempt may start a program that tries to load it.
		if len(m.inventory.list()) > 0 {
			_ = m.scan(ctx)
		}
		select {
		case out <- &ndevice.StatsResponse{Groups: m.collect(ctx, time.Now())}:
		case <-ctx.Done():
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// collect makes the statistics of all slices.
func (m *sliceMode) collect(ctx context.Context, now time.Time) []*ndevice.DeviceGroupStats {
	claims := m.claimsBySlice(ctx)
	groups := []*ndevice.DeviceGroupStats{}
	for _, g := range m.inventory.list() {
		group := &ndevice.DeviceGroupStats{
			Vendor:        vendor,
			Type:          sliceType,
			Name:          g.groupName(),
			InstanceStats: make(map[string]*ndevice.DeviceStats, g.slices),
		}
		for number := range g.slices {
			id := g.sliceID(number)
			group.InstanceStats[id] = sliceStats(&g, claims[id], m.sliceBytes, now)
		}
		groups = append(groups, group)
	}
	return groups
}

// claimUse is a claim and what it uses.
type claimUse struct {
	*claim.Claim
	usedBytes, peakBytes uint64
	refused              uint64
	processes            int
}

// claimsBySlice maps each slice to the claim that has it, if any.
func (m *sliceMode) claimsBySlice(ctx context.Context) map[string]*claimUse {
	claims, _, err := m.ledger.List(ctx)
	if err != nil && ctx.Err() == nil {
		m.logger.Debug("no statistics of claims: could not read the ledger", "error", err)
	}
	bySlice := make(map[string]*claimUse)
	for _, c := range claims {
		if !c.Released.IsZero() {
			continue
		}
		use := &claimUse{Claim: c}
		if usage, err := m.ledger.Usage(ctx, c.ID); err == nil {
			use.usedBytes, use.peakBytes = usage.UsedBytes, usage.PeakBytes
			use.refused, use.processes = usage.Refused, len(usage.Processes)
		} else {
			m.logger.Debug("no statistics of a claim", "claim", c.ID, "error", err)
		}
		for _, slice := range c.Slices {
			bySlice[slice] = use
		}
	}
	return bySlice
}

// sliceStats are the statistics of one slice. Those of a claim are the claim's
// as a whole, on each of its slices: memory is not bound to one of them.
func sliceStats(g *gpu, use *claimUse, sliceBytes uint64, now time.Time) *ndevice.DeviceStats {
	stats := map[string]*structs.StatValue{
		"GPU memory": mebibytes(g.UsedBytes, g.MemoryBytes, "Memory of the GPU that is in use by all processes, of all it has"),
	}
	if g.UtilizationPercent >= 0 && g.problem == "" {
		stats["GPU utilization"] = number(uint64(g.UtilizationPercent), "%", "Share of time in which a kernel ran on the GPU")
	}
	summary := mebibytes(0, sliceBytes, "Memory in use by the claim on this slice, of its limit; no claim has this slice")
	if use != nil {
		summary = mebibytes(use.usedBytes, use.LimitBytes, "Memory in use by the claim on this slice, of its limit")
		id := use.ID
		stats["Claim"] = &structs.StatValue{StringVal: &id, Desc: "Claim that has this slice"}
		stats["Claim slices"] = number(uint64(len(use.Slices)), "", "Slices of the claim")
		stats["Claim memory"] = summary
		stats["Claim peak memory"] = mebibytes(use.peakBytes, use.LimitBytes, "Most memory that the claim had in use, of its limit")
		stats["Claim processes"] = number(uint64(use.processes), "", "Processes of the claim that hold memory")
		stats["Claim refused allocations"] = number(use.refused, "", "Allocations that the claim's limit refused")
	}
	return &ndevice.DeviceStats{Summary: summary, Stats: &structs.StatObject{Attributes: stats}, Timestamp: now}
}

func number(value uint64, unit, description string) *structs.StatValue {
	n := int64(value)
	return &structs.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: description}
}

func mebibytes(part, whole uint64, description string) *structs.StatValue {
	n, of := int64(part>>20), int64(whole>>20)
	return &structs.StatValue{IntNumeratorVal: &n, IntDenominatorVal: &of, Unit: structs.UnitMiB, Desc: description}
}
