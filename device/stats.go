package device

import (
	"context"
	"maps"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"tranche.dev/tranche/claim"
)

// stats sends statistics until the context ends. What can't be found out is
// left out of a message: an error would end the statistics of all GPUs for a
// while.
func (n *node) stats(ctx context.Context, out chan<- *ndevice.StatsResponse, interval time.Duration) {
	defer close(out)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		// Looking for a driver where there was none is left to the fingerprint:
		// each attempt may start a program that tries to load it.
		if len(n.inventory.list()) > 0 {
			_ = n.scan(ctx)
		}
		select {
		case out <- &ndevice.StatsResponse{Groups: n.collect(ctx, time.Now())}:
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

// collect makes the statistics of all devices.
func (n *node) collect(ctx context.Context, now time.Time) []*ndevice.DeviceGroupStats {
	uses := n.uses(ctx)
	byKey := make(map[groupKey]*ndevice.DeviceGroupStats)
	groups := []*ndevice.DeviceGroupStats{}
	for _, g := range n.inventory.list() {
		for key, stats := range n.modes[g.mode].stats(&g, uses, now) {
			group := byKey[key]
			if group == nil {
				group = &ndevice.DeviceGroupStats{
					Vendor: vendor, Type: key.kind, Name: key.name, InstanceStats: make(map[string]*ndevice.DeviceStats),
				}
				byKey[key] = group
				groups = append(groups, group)
			}
			maps.Copy(group.InstanceStats, stats)
		}
	}
	return groups
}

// uses are the claims of the node and what they use, by device.
type uses struct{ byDevice map[string]*claimUse }

// claimUse is a claim and what it uses.
type claimUse struct {
	*claim.Claim
	usedBytes, peakBytes uint64
	refused              uint64
	processes            int
}

// uses finds what claims use.
func (n *node) uses(ctx context.Context) *uses {
	claims, _, err := n.ledger.List(ctx)
	if err != nil && ctx.Err() == nil {
		n.logger.Debug("no statistics of claims: could not read the ledger", "error", err)
	}
	found := &uses{byDevice: make(map[string]*claimUse)}
	for _, c := range claims {
		if !c.Released.IsZero() {
			continue
		}
		use := &claimUse{Claim: c}
		if usage, err := n.ledger.Usage(ctx, c.ID); err == nil {
			use.usedBytes, use.peakBytes = usage.UsedBytes, usage.PeakBytes
			use.refused, use.processes = usage.Refused, len(usage.Processes)
		} else {
			n.logger.Debug("no statistics of a claim", "claim", c.ID, "error", err)
		}
		for _, device := range c.Slices {
			found.byDevice[device] = use
		}
	}
	return found
}

// sliceStats are the statistics of one slice. Those of a claim are the claim's
// as a whole, on each of its slices: memory is not bound to one of them.
func sliceStats(g *gpu, use *claimUse, now time.Time) *ndevice.DeviceStats {
	stats := gpuStatistics(g)
	summary := mebibytes(0, g.sliceBytes, "Memory in use by the claim on this slice, of its limit; no claim has this slice")
	if use != nil {
		summary = mebibytes(use.usedBytes, use.LimitBytes, "Memory in use by the claim on this slice, of its limit")
		addClaim(stats, use)
		stats["Claim slices"] = number(uint64(len(use.Slices)), "", "Slices of the claim")
		stats["Claim memory"] = summary
		stats["Claim peak memory"] = mebibytes(use.peakBytes, use.LimitBytes, "Most memory that the claim had in use, of its limit")
		stats["Claim processes"] = number(uint64(use.processes), "", "Processes of the claim that hold memory")
		stats["Claim refused allocations"] = number(use.refused, "", "Allocations that the claim's limit refused")
	}
	return &ndevice.DeviceStats{Summary: summary, Stats: &structs.StatObject{Attributes: stats}, Timestamp: now}
}

// gpuStats are the statistics of a GPU that nobody has a limit on.
func gpuStats(g *gpu, use *claimUse, now time.Time) *ndevice.DeviceStats {
	stats := gpuStatistics(g)
	if use != nil {
		addClaim(stats, use)
	}
	return &ndevice.DeviceStats{
		Summary: stats["GPU memory"], Stats: &structs.StatObject{Attributes: stats}, Timestamp: now,
	}
}

// gpuStatistics are those of the GPU as a whole.
func gpuStatistics(g *gpu) map[string]*structs.StatValue {
	stats := map[string]*structs.StatValue{
		"GPU memory": mebibytes(g.UsedBytes, g.MemoryBytes, "Memory of the GPU that is in use by all processes, of all it has"),
	}
	if g.UtilizationPercent >= 0 && g.problem == "" {
		stats["GPU utilization"] = number(uint64(g.UtilizationPercent), "%", "Share of time in which a kernel ran on the GPU")
	}
	return stats
}

func addClaim(stats map[string]*structs.StatValue, use *claimUse) {
	id := use.ID
	stats["Claim"] = &structs.StatValue{StringVal: &id, Desc: "Claim that has this device"}
}

func number(value uint64, unit, description string) *structs.StatValue {
	n := int64(value)
	return &structs.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: description}
}

func mebibytes(part, whole uint64, description string) *structs.StatValue {
	n, of := int64(part>>20), int64(whole>>20)
	return &structs.StatValue{IntNumeratorVal: &n, IntDenominatorVal: &of, Unit: structs.UnitMiB, Desc: description}
}
