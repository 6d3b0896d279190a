package device

import (
	"context"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// measureInstances asks what is used of the MIG instances of a GPU that devices
// stand for. All else is the GPU's, which tells it as a whole only.
func (n *node) measureInstances(
	ctx context.Context, g *gpu, whole *nvml.Telemetry, byDevice map[string]*claimUse, all map[string]measurements,
) {
	if !g.MIG.Enabled || n.partitioner == nil {
		return
	}
	for _, uuid := range instancesToMeasure(g, byDevice) {
		measured := *whole
		measured.UsedBytes, measured.MemoryBytes, measured.BAR1UsedBytes, measured.BAR1Bytes = nil, nil, nil, nil
		memory, err := n.partitioner.InstanceMemory(ctx, uuid)
		if n.reported.changed("telemetry of "+uuid, err) && err != nil {
			n.logger.Debug("no statistics of a MIG instance", "gpu", g.UUID, "instance", uuid, "error", err)
		}
		if err == nil {
			measured.UsedBytes, measured.MemoryBytes = memory.UsedBytes, memory.MemoryBytes
			measured.BAR1UsedBytes, measured.BAR1Bytes = memory.BAR1UsedBytes, memory.BAR1Bytes
		}
		all[uuid] = gpuStatistics(&measured)
	}
}

// instancesToMeasure are the UUIDs of a GPU's instances that statistics are about.
func instancesToMeasure(g *gpu, byDevice map[string]*claimUse) []string {
	var uuids []string
	if !g.onDemand() {
		for _, instance := range g.MIG.Instances {
			if instance.UUID != "" {
				uuids = append(uuids, instance.UUID)
			}
		}
		return uuids
	}
	seen := make(map[*claimUse]bool)
	for _, use := range byDevice {
		if use.Mode == claim.ModeMIG && use.PhysicalGPU() == g.UUID && !use.Making() && !seen[use] {
			seen[use] = true
			uuids = append(uuids, use.GPU.UUID)
		}
	}
	return uuids
}

// of is what was measured of an instance, or of its GPU where nobody told.
func (u *uses) of(instance, gpu string) measurements {
	if measured := u.gpus[instance]; measured != nil {
		return measured
	}
	return u.gpus[gpu]
}

// demandStats are the statistics of a slice that a claim has, of a GPU whose
// instances are made on demand: those of the claim's instance.
func demandStats(measured measurements, id string, first bool, use *claimUse, now time.Time) *ndevice.DeviceStats {
	memory := *measured["Memory state"]
	memory.Desc = "Memory in use of the claim's MIG instance, of all it has"
	stats := measured.on(id, first, use)
	stats.addClaim(use)
	if use.leads(id) {
		stats["Claim slices"] = count(uint64(len(use.Slices)), "Slices of the claim")
		stats["Claim memory"] = &memory
	}
	return stats.withSummary(&memory, now)
}
