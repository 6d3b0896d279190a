package mig

import (
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
)

// InstanceGroups returns MIG instances as Nomad sees them.
func InstanceGroups(g *share.GPU, instances []nvml.MIGInstance) []*ndevice.DeviceGroup {
	var groups []*ndevice.DeviceGroup
	for _, instance := range instances {
		group := g.Group(share.GPUType, instance.Name, share.IsolationHardware)
		group.Attributes["memory"] = structs.NewIntAttribute(int64(instance.MemoryBytes>>20), structs.UnitMiB)
		group.Attributes["sm_count"] = structs.NewIntAttribute(int64(instance.Multiprocessors), "")
		group.Devices = []*ndevice.Device{g.Device(instance.UUID)}
		groups = append(groups, group)
	}
	return groups
}

// WithoutIgnored returns the instances that the configuration does not exclude.
func WithoutIgnored(instances []nvml.MIGInstance, ignored map[string]bool) []nvml.MIGInstance {
	var offered []nvml.MIGInstance
	for _, instance := range instances {
		if !ignored[instance.UUID] {
			offered = append(offered, instance)
		}
	}
	return offered
}

// FindInstance returns the instance with this UUID.
func FindInstance(instances []nvml.MIGInstance, uuid string) (nvml.MIGInstance, bool) {
	for _, instance := range instances {
		if instance.UUID == uuid {
			return instance, uuid != ""
		}
	}
	return nvml.MIGInstance{}, false
}

// InstanceRequest returns the claim to make on an instance.
func InstanceRequest(g *share.GPU, instance nvml.MIGInstance) claim.Request {
	return claim.Request{
		GPU:        claim.GPU{UUID: instance.UUID, Index: g.Index, Name: instance.Name},
		Slices:     []string{instance.UUID},
		LimitBytes: instance.MemoryBytes,
		Owner:      claim.OwnerNomad,
		Mode:       claim.ModeMIG,
		Unlimited:  true,
		MIG: &claim.MIG{
			GPUUUID: g.UUID, GPUIndex: g.Index, Profile: instance.Profile,
			GPUInstance: instance.GPUInstance, ComputeInstance: instance.ComputeInstance,
			Start: instance.Start, Size: instance.Size,
		},
	}
}

// InstanceStats returns the statistics of instances. The driver reports everything but memory for the whole GPU only.
func InstanceStats(
	g *share.GPU, instances []nvml.MIGInstance, u *share.Usage, now time.Time,
) map[share.GroupKey]share.DeviceStats {
	all := make(map[share.GroupKey]share.DeviceStats)
	for _, instance := range instances {
		key := share.GroupKey{Type: share.GPUType, Name: instance.Name}
		if all[key] == nil {
			all[key] = make(share.DeviceStats)
		}
		all[key][instance.UUID] = u.Instance(instance.UUID, g.UUID).Whole(u.Claims[instance.UUID], now)
	}
	return all
}
