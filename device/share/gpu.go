// Package share describes GPUs as tasks share them: what Nomad sees of a GPU, which claims use it, and the interface of
// a sharing mode. Each mode is a package below this one. This package never queries the driver by itself.
package share

import (
	"fmt"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// Vendor begins the device names of jobspecs, such as nvidia/slice.
const Vendor = "nvidia"

// Policy says how one GPU is shared.
type Policy struct {
	Mode claim.Mode
	// SliceBytes is the memory of one slice. It is 0 in modes without slices.
	SliceBytes uint64
	// Replicas is the number of tasks that may share the GPU in mode timeslice.
	Replicas int
	// Profiles are the MIG instances to create in mode mig. Without any, instances are created on demand.
	Profiles []string
	// Instances is how each of these instances is shared, like a GPU of its own; nil if it is for one task.
	Instances *Policy
	// Shares is whether claims compute in turns, in proportion to their shares; otherwise the driver shares the GPU's time.
	Shares bool
	// Enforcement is what is to hold tasks to their limits of memory.
	Enforcement claim.Enforcement
}

// MayBeByDriver reports whether the GPU driver may hold tasks to their limits.
func (p *Policy) MayBeByDriver() bool {
	return p.Enforcement == claim.EnforcementAuto || p.Enforcement == claim.EnforcementDriver
}

// Sliced reports whether the mode divides the GPU's memory into slices of its own, that is, without MIG.
func (p *Policy) Sliced() bool { return p.Mode.Sliced() }

// Shared reports whether several tasks use the GPU, or one of its MIG instances, at the same time.
func (p *Policy) Shared() bool {
	return p.Mode != claim.ModeExclusive && p.Mode != claim.ModeMIG || p.Instances != nil && p.Instances.Shared()
}

// AnyShares reports whether claims on the GPU, or on its MIG instances, compute in turns.
func (p *Policy) AnyShares() bool { return p.Shares || p.Instances != nil && p.Instances.Shares }

// OnDemand reports whether MIG instances are created when slices are reserved.
func (p *Policy) OnDemand() bool { return p.Mode == claim.ModeMIG && len(p.Profiles) == 0 }

// GPU is a copy of what is known of a GPU that this node has, or had since the plugin started. It may be a MIG instance that
// several tasks share: nothing but Origin tells it from a physical GPU.
type GPU struct {
	nvml.GPU
	Policy
	DriverVersion, CUDAVersion string
	// SliceCount is the number of slices, in modes that have slices. It stays what it was when the GPU was found,
	// although the memory that the driver reserves for itself may vary.
	SliceCount int
	// Sizes are the MIG profiles from which on-demand instances are chosen. It is empty until the driver lists them.
	Sizes []mig.Profile
	// Condition is why a GPU that answers is unhealthy; empty if it is healthy.
	Condition string
	// Waits is what keeps MIG from being turned on or off or its instances from being created; empty if nothing does.
	Waits string
	// NoDriverLimits is why the driver cannot hold tasks to their limits; empty if it can, or if it is not to.
	NoDriverLimits string
	// Answers is whether the driver currently answers queries about the GPU.
	Answers bool
	// Gone is whether nothing can use the GPU, because it is off the bus or its driver is not loaded.
	Gone bool
	// Problem is why the GPU cannot be used at the moment; empty if it can.
	Problem string
}

// String names the GPU in messages.
func (g *GPU) String() string { return fmt.Sprintf("%s (%s)", g.GroupName(), g.UUID) }

// GroupName returns the name of the GPU's device group. Nomad makes it part of the node's class, so it must be the same
// on nodes of the same build. That of a MIG instance has its first memory slot, too.
func (g *GPU) GroupName() string {
	if g.Origin != nil {
		return fmt.Sprintf("%s #%d.%d", g.Name, g.Index, g.Origin.Start)
	}
	return fmt.Sprintf("%s #%d", g.Name, g.Index)
}

// PhysicalUUID returns the UUID of the physical GPU.
func (g *GPU) PhysicalUUID() string {
	if g.Origin != nil {
		return g.Origin.GPUUUID
	}
	return g.UUID
}

// SliceID returns the device ID of one slice of the GPU.
func (g *GPU) SliceID(number int) string { return claim.SliceName(g.UUID, number) }

// HasSlice reports whether a device ID names one of the GPU's slices.
func (g *GPU) HasSlice(id string) bool {
	uuid, number, ok := claim.ParseSliceName(id)
	return ok && uuid == g.UUID && number < g.SliceCount
}

// CostKey returns what the memory of a CUDA context on this GPU depends on.
func (g *GPU) CostKey() contextcost.GPU {
	return contextcost.GPU{UUID: g.UUID, Name: g.Name, DriverVersion: g.DriverVersion}
}

// Unhealthy returns why work on the GPU is at risk; empty if it is not. That a GPU waits to be shared in another mode
// does not concern the tasks that use it until then.
func (g *GPU) Unhealthy() string {
	if g.Answers && g.Condition == "" && g.Waits != "" {
		return ""
	}
	return g.Problem
}

// Claim returns the GPU as claims name it.
func (g *GPU) Claim() claim.GPU { return claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name} }

// Compute returns what so many of all equal parts of the GPU are worth of its time; nil where the driver shares it.
func (g *GPU) Compute(parts, all int) *claim.Compute {
	if !g.Shares {
		return nil
	}
	return claim.ShareOf(parts, all)
}

// Enforced returns what holds new tasks on the GPU to their limits.
func (g *GPU) Enforced() claim.Enforcement {
	if g.MayBeByDriver() && g.NoDriverLimits == "" {
		return claim.EnforcementDriver
	}
	return claim.EnforcementLibrary
}

// Device returns a part of the GPU, or all of it, as Nomad sees it.
func (g *GPU) Device(id string) *ndevice.Device {
	return &ndevice.Device{
		ID:         id,
		Healthy:    g.Problem == "",
		HealthDesc: g.Problem,
		HwLocality: &ndevice.DeviceLocality{PciBusID: g.PCIBusID},
	}
}

// Group returns a device group without devices.
func (g *GPU) Group(kind, name, isolation string) *ndevice.DeviceGroup {
	return &ndevice.DeviceGroup{Vendor: Vendor, Type: kind, Name: name, Attributes: g.Attributes(isolation)}
}

// OwnGroup returns a device group that has devices of this GPU only, with the attributes that tell GPUs apart. Those that
// begin with "unique." are left out of the node's class, which is the same for nodes of the same build.
func (g *GPU) OwnGroup(kind, isolation string) *ndevice.DeviceGroup {
	group := g.Group(kind, g.GroupName(), isolation)
	group.Attributes["index"] = structs.NewIntAttribute(int64(g.Index), "")
	group.Attributes["unique.uuid"] = structs.NewStringAttribute(g.UUID)
	group.Attributes["unique.pci_bus_id"] = structs.NewStringAttribute(g.PCIBusID)
	if g.Origin != nil {
		group.Attributes["model"] = structs.NewStringAttribute(g.Origin.GPUName)
		group.Attributes["mig_profile"] = structs.NewStringAttribute(g.Origin.Profile)
		group.Attributes["mig_slot"] = structs.NewIntAttribute(int64(g.Origin.Start), "")
	}
	return group
}
