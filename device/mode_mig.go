package device

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// migMode offers the instances that the configuration declares. Each is a device
// of the type of whole GPUs, in a group by the driver's name for it, as
// nomad-device-nvidia has them. Of GPUs of which nothing is declared it offers
// slices: see demandMode.
type migMode struct{ demand demandMode }

func (m *migMode) groups(g *gpu, taken *taken) []*ndevice.DeviceGroup {
	if g.onDemand() {
		return m.demand.groups(g, taken)
	}
	groups := instanceGroups(g, m.demand.offered(g.declared()))
	if unmade := g.unmade(); len(unmade) > 0 {
		groups = append(groups, unmadeGroup(g, unmade))
	}
	return groups
}

func (m *migMode) has(g *gpu, id string) bool {
	return hasInstance(m.demand.offered(g.declared()), id) || g.onDemand() && g.hasSlice(id)
}

func (m *migMode) reserve(ctx context.Context, devices []device) ([]claim.Token, error) {
	for _, d := range devices {
		if d.gpu.onDemand() {
			return m.demand.reserve(ctx, devices)
		}
	}
	return m.demand.reserveWhole(ctx, devices)
}

func (m *migMode) stats(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats {
	if g.onDemand() {
		return m.demand.stats(g, uses, now)
	}
	all := instanceStatistics(g, m.demand.offered(g.declared()), uses, now)
	if len(g.unmade()) > 0 {
		all[groupKey{gpuType, g.unmadeName()}] = deviceStats{g.UUID: gpuStats(uses.gpus[g.UUID], nil, now)}
	}
	return all
}

// declared are the GPU's instances that count as those of its profiles: of each
// profile as many as there are to be.
func (g *gpu) declared() []nvml.MIGInstance {
	left := make(map[string]int)
	for _, name := range g.profiles {
		left[name]++
	}
	var declared []nvml.MIGInstance
	for _, instance := range g.MIG.Instances {
		if instance.UUID != "" && left[instance.Profile] > 0 {
			left[instance.Profile]--
			declared = append(declared, instance)
		}
	}
	return declared
}

// unmade are the profiles of which there are fewer instances than there are to be.
func (g *gpu) unmade() []string {
	unmade := slices.Clone(g.profiles)
	for _, instance := range g.declared() {
		i := slices.Index(unmade, instance.Profile)
		unmade = slices.Delete(unmade, i, i+1)
	}
	return unmade
}

// unmadeName is not a name of instances: those that are there keep their attributes to themselves.
func (g *gpu) unmadeName() string { return g.Name + " MIG" }

// unmadeGroup is one unhealthy device that stands for all instances that are not there, so that Nomad has the reason.
func unmadeGroup(g *gpu, unmade []string) *ndevice.DeviceGroup {
	reason := cmp.Or(g.waits, "the next look at the GPU tries to make them")
	group := &ndevice.DeviceGroup{
		Vendor: vendor, Type: gpuType, Name: g.unmadeName(), Attributes: g.attributes(isolationHardware),
		Devices: []*ndevice.Device{g.device(g.UUID)},
	}
	setWaits(group, "MIG instances "+strings.Join(unmade, ", ")+" are not there: "+reason)
	return group
}

// offered are those of the instances that the configuration leaves to Nomad.
func (n *node) offered(instances []nvml.MIGInstance) []nvml.MIGInstance {
	var offered []nvml.MIGInstance
	for _, instance := range instances {
		if !n.ignored[instance.UUID] {
			offered = append(offered, instance)
		}
	}
	return offered
}

// instanceGroups are instances as Nomad sees them.
func instanceGroups(g *gpu, instances []nvml.MIGInstance) []*ndevice.DeviceGroup {
	var groups []*ndevice.DeviceGroup
	for _, instance := range instances {
		attributes := g.attributes(isolationHardware)
		attributes["memory"] = structs.NewIntAttribute(int64(instance.MemoryBytes>>20), structs.UnitMiB)
		attributes["sm_count"] = structs.NewIntAttribute(int64(instance.Multiprocessors), "")
		groups = append(groups, &ndevice.DeviceGroup{
			Vendor: vendor, Type: gpuType, Name: instance.Name, Attributes: attributes,
			Devices: []*ndevice.Device{g.device(instance.UUID)},
		})
	}
	return groups
}

func hasInstance(instances []nvml.MIGInstance, id string) bool {
	_, ok := instanceOf(instances, id)
	return ok
}

func instanceOf(instances []nvml.MIGInstance, id string) (nvml.MIGInstance, bool) {
	for _, instance := range instances {
		if instance.UUID == id {
			return instance, id != ""
		}
	}
	return nvml.MIGInstance{}, false
}

// instanceRequest is what to ask the ledger for, for an instance.
func instanceRequest(g *gpu, instance nvml.MIGInstance) claim.Request {
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

// instanceStatistics are those of instances. All but the memory, the driver tells
// of the whole GPU only.
func instanceStatistics(
	g *gpu, instances []nvml.MIGInstance, uses *uses, now time.Time,
) map[groupKey]deviceStats {
	all := make(map[groupKey]deviceStats)
	for _, instance := range instances {
		key := groupKey{gpuType, instance.Name}
		if all[key] == nil {
			all[key] = make(deviceStats)
		}
		all[key][instance.UUID] = gpuStats(uses.of(instance.UUID, g.UUID), uses.byDevice[instance.UUID], now)
	}
	return all
}
