package device

import (
	"context"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/device/nvml"
)

// measureInstances asks what is used of the MIG instances of a GPU that devices
// stand for. All else is the GPU's, which tells it as a whole only.
func (n *node) measureInstances(ctx context.Context, g *gpu, uses *uses) {
	if !g.MIG.Enabled || n.partitioner == nil {
		return
	}
	for _, uuid := range instancesToMeasure(g, uses) {
		measured := *uses.gpus[g.UUID]
		measured.UsedBytes, measured.MemoryBytes, measured.BAR1UsedBytes, measured.BAR1Bytes = nil, nil, nil, nil
		memory, err := n.partitioner.InstanceMemory(ctx, uuid)
		if n.reported.changed("telemetry of "+uuid, err) && err != nil {
			n.logger.Debug("no statistics of a MIG instance", "gpu", g.UUID, "instance", uuid, "error", err)
		}
		if err == nil {
			measured.UsedBytes, measured.MemoryBytes = memory.UsedBytes, memory.MemoryBytes
			measured.BAR1UsedBytes, measured.BAR1Bytes = memory.BAR1UsedBytes, memory.BAR1Bytes
		}
		uses.gpus[uuid] = &measured
	}
}

// instancesToMeasure are the UUIDs of a GPU's instances that statistics are about.
func instancesToMeasure(g *gpu, uses *uses) []string {
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
	for _, use := range uses.byDevice {
		if use.Mode == claim.ModeMIG && use.PhysicalGPU() == g.UUID && !use.Making() && !seen[use] {
			seen[use] = true
			uuids = append(uuids, use.GPU.UUID)
		}
	}
	return uuids
}

// of is what was measured of an instance, or of its GPU where nobody told.
func (u *uses) of(instance, gpu string) *nvml.Telemetry {
	if measured := u.gpus[instance]; measured != nil {
		return measured
	}
	return u.gpus[gpu]
}

// demandStats are the statistics of one slice of a GPU whose instances are made
// on demand: those of the instance of the claim that has it.
func demandStats(g *gpu, uses *uses, use *claimUse, now time.Time) *ndevice.DeviceStats {
	measured := uses.gpus[g.UUID]
	summary := mebibytes(0, g.sliceBytes, "Memory in use of the MIG instance of this slice; no claim has this slice")
	if use == nil {
		return &ndevice.DeviceStats{
			Summary: summary, Stats: &structs.StatObject{Attributes: gpuStatistics(measured)}, Timestamp: now,
		}
	}
	measured = uses.of(use.GPU.UUID, g.UUID)
	stats := gpuStatistics(measured)
	addClaim(stats, use)
	slices := int64(len(use.Slices))
	stats["Claim slices"] = told(&slices, "", "Slices of the claim")
	stats["Claim memory"] = ratio(measured.UsedBytes, measured.MemoryBytes, 1<<20, structs.UnitMiB,
		"Memory in use of the claim's MIG instance, of all it has")
	return &ndevice.DeviceStats{
		Summary: stats["Claim memory"], Stats: &structs.StatObject{Attributes: stats}, Timestamp: now,
	}
}
