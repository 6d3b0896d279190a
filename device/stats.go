package device

import (
	"context"
	"maps"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/device/nvml"
)

// stats sends statistics until the context ends. What can't be found out is
// left out of a message: an error would end the statistics of all GPUs for a
// while.
func (n *node) stats(ctx context.Context, out chan<- *ndevice.StatsResponse, interval time.Duration) {
	defer close(out)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
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
	n.measure(ctx, uses)
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

// uses is what is in use of the node: by claims, by device, and of GPUs, by UUID.
type uses struct {
	byDevice map[string]*claimUse
	gpus     map[string]*nvml.Telemetry
}

// measure asks the GPUs what they measure of themselves. One that does not tell
// has no statistics but those of its claims.
func (n *node) measure(ctx context.Context, uses *uses) {
	uses.gpus = make(map[string]*nvml.Telemetry)
	bounded, cancel := context.WithTimeout(ctx, n.nvmlTimeout)
	defer cancel()
	for _, g := range n.inventory.list() {
		uses.gpus[g.UUID] = &nvml.Telemetry{}
		// What does not answer is left to the fingerprint: it says so, and looks again.
		if !g.answers {
			continue
		}
		telemetry, err := n.nvml.Telemetry(bounded, g.UUID)
		if n.reported.changed("telemetry of "+g.UUID, err) && err != nil {
			n.logger.Debug("no statistics of a GPU", "gpu", g.UUID, "error", err)
			n.wake()
		}
		if err != nil {
			continue
		}
		uses.gpus[g.UUID] = telemetry
		n.measureInstances(bounded, &g, uses)
	}
}

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
func sliceStats(g *gpu, measured *nvml.Telemetry, use *claimUse, now time.Time) *ndevice.DeviceStats {
	stats := gpuStatistics(measured)
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
func gpuStats(measured *nvml.Telemetry, use *claimUse, now time.Time) *ndevice.DeviceStats {
	stats := gpuStatistics(measured)
	if use != nil {
		addClaim(stats, use)
	}
	return &ndevice.DeviceStats{
		Summary: stats["Memory state"], Stats: &structs.StatObject{Attributes: stats}, Timestamp: now,
	}
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
