package device

import (
	"context"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
)

// gpuType is the type of whole GPUs and of MIG instances, as in jobspecs:
// nvidia/gpu. It is nomad-device-nvidia's, with its names and attributes, so
// that jobs for that plugin run unchanged.
const gpuType = "gpu"

// exclusiveMode offers whole GPUs; those of one model are one group. Of a GPU
// that somebody has cut up by MIG it offers the instances as they are, as
// nomad-device-nvidia does.
type exclusiveMode struct{ *node }

func (m *exclusiveMode) groups(g *gpu, taken *taken) []*ndevice.DeviceGroup {
	if g.MIG.Enabled {
		return instanceGroups(g, m.offered(g.MIG.Instances))
	}
	whole := g.device(g.UUID)
	setTaken(whole, taken.byGPU[g.UUID])
	return []*ndevice.DeviceGroup{{
		Vendor: vendor, Type: gpuType, Name: g.Name, Attributes: g.attributes(isolationExclusive),
		Devices: []*ndevice.Device{whole},
	}}
}

func (m *exclusiveMode) has(g *gpu, id string) bool {
	if g.MIG.Enabled {
		return hasInstance(m.offered(g.MIG.Instances), id)
	}
	return id == g.UUID
}

func (m *exclusiveMode) reserve(ctx context.Context, devices []device) ([]claim.Token, error) {
	return m.reserveWhole(ctx, devices)
}

// reserveWhole makes a claim on each of whole GPUs and instances.
func (n *node) reserveWhole(ctx context.Context, devices []device) ([]claim.Token, error) {
	var requests []claim.Request
	for _, d := range devices {
		if instance, ok := instanceOf(d.gpu.MIG.Instances, d.id); ok {
			requests = append(requests, instanceRequest(&d.gpu, instance))
			continue
		}
		requests = append(requests, claim.Request{
			GPU:        claim.GPU{UUID: d.gpu.UUID, Index: d.gpu.Index, Name: d.gpu.Name},
			Slices:     []string{d.id},
			LimitBytes: d.gpu.MemoryBytes,
			Owner:      claim.OwnerNomad,
			Mode:       claim.ModeExclusive,
			Unlimited:  true,
		})
	}
	return n.claim(ctx, requests...)
}

func (m *exclusiveMode) stats(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats {
	if g.MIG.Enabled {
		return instanceStatistics(g, m.offered(g.MIG.Instances), uses, now)
	}
	return map[groupKey]deviceStats{
		{gpuType, g.Name}: {g.UUID: gpuStats(uses.gpus[g.UUID], uses.byDevice[g.UUID], now)},
	}
}
