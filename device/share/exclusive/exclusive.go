// Package exclusive implements mode exclusive: whole GPUs, as nomad-device-nvidia offers them.
package exclusive

import (
	"context"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mig"
)

// Mode implements share.Mode. GPUs of one model are one group. Of a GPU on which somebody else has turned MIG on it offers
// the instances as they are, as nomad-device-nvidia does.
type Mode struct {
	Ledger *share.Ledger
	// Ignored are UUIDs of MIG instances that are not offered.
	Ignored map[string]bool
}

// Check implements share.Mode: any GPU can be in mode exclusive.
func (m *Mode) Check(context.Context, nvml.GPU, share.Policy) error { return nil }

// Problem implements share.Mode.
func (m *Mode) Problem(*share.GPU) string { return "" }

// Groups implements share.Mode.
func (m *Mode) Groups(g *share.GPU, o *share.Occupancy) []*ndevice.DeviceGroup {
	if g.MIG.Enabled {
		return mig.InstanceGroups(g, m.instances(g))
	}
	whole := g.Device(g.UUID)
	share.MarkExternal(whole, o.ExternalGPUs[g.UUID])
	group := g.Group(share.GPUType, g.Name, share.IsolationExclusive)
	group.Devices = []*ndevice.Device{whole}
	return []*ndevice.DeviceGroup{group}
}

// Has implements share.Mode.
func (m *Mode) Has(g *share.GPU, id string) bool {
	if g.MIG.Enabled {
		_, ok := mig.FindInstance(m.instances(g), id)
		return ok
	}
	return id == g.UUID
}

func (m *Mode) instances(g *share.GPU) []nvml.MIGInstance {
	return mig.WithoutIgnored(g.MIG.Instances, m.Ignored)
}

// Reserve implements share.Mode. Each GPU, or MIG instance, gets a claim of its own.
func (m *Mode) Reserve(ctx context.Context, devices []share.Device) (*share.Reservation, error) {
	var requests []claim.Request
	for _, d := range devices {
		if instance, ok := mig.FindInstance(d.GPU.MIG.Instances, d.ID); ok {
			requests = append(requests, mig.InstanceRequest(&d.GPU, instance))
			continue
		}
		requests = append(requests, claim.Request{
			GPU:        d.GPU.Claim(),
			Slices:     []string{d.ID},
			LimitBytes: d.GPU.MemoryBytes,
			Owner:      claim.OwnerNomad,
			Mode:       claim.ModeExclusive,
			Unlimited:  true,
		})
	}
	tokens, err := m.Ledger.Make(ctx, requests...)
	return &share.Reservation{Tokens: tokens, Visible: share.IDs(devices)}, err
}

// Stats implements share.Mode.
func (m *Mode) Stats(g *share.GPU, u *share.Usage, now time.Time) map[share.GroupKey]share.DeviceStats {
	if g.MIG.Enabled {
		return mig.InstanceStats(g, m.instances(g), u, now)
	}
	return map[share.GroupKey]share.DeviceStats{
		{Type: share.GPUType, Name: g.Name}: {g.UUID: u.GPUs[g.UUID].Whole(u.Claims[g.UUID], now)},
	}
}
