package device

import (
	"context"
	"fmt"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
)

// mode is one way to share a GPU: what Nomad sees of it, and what a
// reservation makes of what Nomad saw.
type mode interface {
	// groups are what Nomad sees of a GPU. Groups of several GPUs that have one
	// name are joined afterwards.
	groups(g *gpu, taken *taken) []*ndevice.DeviceGroup
	// has tells whether a GPU has a device of that ID.
	has(g *gpu, id string) bool
	// reserve makes claims on devices that GPUs of this mode have.
	reserve(ctx context.Context, devices []device) ([]claim.Token, error)
	// stats are the statistics of a GPU's devices, by the names of their groups.
	stats(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats
}

// device is what Nomad calls one: a part of a GPU, or all of it.
type device struct {
	id  string
	gpu gpu
}

// groupKey tells the groups of a node apart.
type groupKey struct{ kind, name string }

func keyOf(group *ndevice.DeviceGroup) groupKey { return groupKey{group.Type, group.Name} }

type deviceStats map[string]*ndevice.DeviceStats

// What isolates those who share a GPU from each other, as the attribute
// "isolation" says.
const (
	isolationNone      = "none"      // nothing does
	isolationMemory    = "memory"    // each has a limit of memory; they take turns at computing
	isolationMPS       = "mps"       // each has a limit of memory and of multiprocessors; they compute side by side
	isolationHardware  = "hardware"  // memory, computing and faults are each one's own
	isolationExclusive = "exclusive" // nobody shares
)

func (n *node) newModes() map[claim.Mode]mode {
	return map[claim.Mode]mode{
		claim.ModeSlice:     &sliceMode{n},
		claim.ModeExclusive: &exclusiveMode{n},
		claim.ModeTimeslice: &timesliceMode{n},
		claim.ModeMPS:       &mpsMode{n},
		claim.ModeMIG:       &migMode{demandMode{n}},
	}
}

// device is a part of a GPU, or all of it, as Nomad sees it.
func (g *gpu) device(id string) *ndevice.Device {
	return &ndevice.Device{
		ID:         id,
		Healthy:    g.problem == "",
		HealthDesc: g.problem,
		HwLocality: &ndevice.DeviceLocality{PciBusID: g.PCIBusID},
	}
}

// setTaken says on a healthy device that somebody outside Nomad has it.
func setTaken(d *ndevice.Device, holder *claim.Claim) {
	if holder != nil && d.Healthy {
		d.Healthy = false
		d.HealthDesc = "taken outside Nomad by claim " + holder.ID + " (" + holder.Owner + ")"
	}
}

// setEarlier says on devices that they wait for a claim from before a change of
// the configuration.
func (t *taken) setEarlier(g *gpu, group *ndevice.DeviceGroup) {
	for _, d := range group.Devices {
		holder := t.earlier[g.UUID]
		if holder == nil {
			holder = t.earlier[d.ID]
		}
		if holder != nil && d.Healthy {
			d.Healthy = false
			d.HealthDesc = "waits for claim " + holder.ID + ", whose GPU is in mode " + describeMode(holder) + " until its task has ended"
		}
	}
}

func describeMode(c *claim.Claim) string {
	if c.Mode != claim.ModeSlice && !madeOnDemand(c) {
		return string(c.Mode)
	}
	return string(c.Mode) + " (" + memsize.Format(c.SliceSize()) + ")"
}

// joined puts groups of one name together. Their attributes are those of the
// device with the lowest ID, so that they do not depend on an order that may
// change.
func joined(groups []*ndevice.DeviceGroup) []*ndevice.DeviceGroup {
	all := []*ndevice.DeviceGroup{}
	byKey := make(map[groupKey]*ndevice.DeviceGroup)
	for _, group := range groups {
		first := byKey[keyOf(group)]
		if first == nil {
			byKey[keyOf(group)] = group
			all = append(all, group)
			continue
		}
		if group.Devices[0].ID < first.Devices[0].ID {
			first.Attributes = group.Attributes
			first.Devices = append(group.Devices, first.Devices...)
		} else {
			first.Devices = append(first.Devices, group.Devices...)
		}
	}
	for _, group := range all {
		setHealthy(group)
	}
	return all
}

// setHealthy counts the devices that Nomad may give out. The count is part of
// the node's class for a reason: once Nomad has found too few healthy devices on
// one node, it looks at no other of that class, and a job that waits for one is
// not tried again when the devices are healthy again.
func setHealthy(group *ndevice.DeviceGroup) {
	count := int64(0)
	for _, d := range group.Devices {
		if d.Healthy {
			count++
		}
	}
	name := "healthy_devices"
	if group.Type == sliceType {
		name = "healthy_slices"
	}
	group.Attributes[name] = structs.NewIntAttribute(count, "")
}

// oneGPU returns the GPU that all devices are of.
func oneGPU(devices []device) (*gpu, error) {
	var ids, uuids []string
	seen := make(map[string]bool)
	for _, d := range devices {
		ids = append(ids, d.id)
		if !seen[d.gpu.UUID] {
			seen[d.gpu.UUID] = true
			uuids = append(uuids, d.gpu.UUID)
		}
	}
	if len(uuids) > 1 {
		return nil, fmt.Errorf("the reservation names slices of %d GPUs: %s (GPUs %s); a claim is on one GPU, so ask for "+
			"each GPU in a device block of its own", len(uuids), list(ids), list(uuids))
	}
	return &devices[0].gpu, nil
}
