package share

import (
	"context"
	"fmt"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// Mode is one way to share a GPU: which devices of it Nomad sees, and which claims a reservation of them makes.
type Mode interface {
	// Check returns why a GPU cannot be in this mode, as far as that is known when the plugin is configured.
	Check(ctx context.Context, g nvml.GPU, p Policy) error
	// Problem returns why no device of a GPU can be used although the GPU answers; empty if there is no such reason.
	Problem(g *GPU) string
	// Groups returns what Nomad sees of a GPU. Groups of several GPUs that have the same name are joined afterwards.
	Groups(g *GPU, o *Occupancy) []*ndevice.DeviceGroup
	// Has reports whether a GPU has a device with this ID.
	Has(g *GPU, id string) bool
	// Reserve makes claims, all or none, on devices of GPUs in this mode.
	Reserve(ctx context.Context, devices []Device) (*Reservation, error)
	// Stats returns the statistics of a GPU's devices, by the names of their groups.
	Stats(g *GPU, u *Usage, now time.Time) map[GroupKey]DeviceStats
}

// Values of the attribute "isolation": what isolates the tasks on a GPU from each other.
const (
	IsolationNone      = "none"      // nothing
	IsolationMemory    = "memory"    // each has a memory limit; they take turns at computing
	IsolationMPS       = "mps"       // each has a limit of memory and of multiprocessors; they compute side by side
	IsolationHardware  = "hardware"  // memory, computing and faults are separate
	IsolationExclusive = "exclusive" // there is one task only
)

// Device is what Nomad calls one: a part of a GPU, or all of it.
type Device struct {
	ID  string
	GPU GPU
}

// IDs returns the IDs of devices.
func IDs(devices []Device) []string {
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.ID)
	}
	return ids
}

// OneGPU returns the GPU to which all slices belong. It is an error if they belong to several, or if there are more
// slices than maxSlices; 0 is no limit.
func OneGPU(devices []Device, maxSlices int) (*GPU, error) {
	if maxSlices > 0 && len(devices) > maxSlices {
		return nil, fmt.Errorf("%d slices are more than one task may have on this node, which is %d "+
			"(max_slices in the plugin's configuration): ask for fewer", len(devices), maxSlices)
	}
	var uuids []string
	seen := make(map[string]bool)
	for _, d := range devices {
		if !seen[d.GPU.UUID] {
			seen[d.GPU.UUID] = true
			uuids = append(uuids, d.GPU.UUID)
		}
	}
	if len(uuids) > 1 {
		return nil, fmt.Errorf("the reservation names slices of %d GPUs: %s (GPUs %s); a claim is on one GPU, so ask for "+
			"each GPU in a device block of its own",
			len(uuids), claim.ListNames(IDs(devices)), claim.ListNames(uuids))
	}
	return &devices[0].GPU, nil
}

// Reservation is the outcome of a successful reservation.
type Reservation struct {
	Tokens []claim.Token
	// Visible is the value of NVIDIA_VISIBLE_DEVICES; empty for none.
	Visible []string
}

// ContextCosts returns how much memory a CUDA context takes on a GPU.
type ContextCosts interface {
	Cost(ctx context.Context, gpu contextcost.GPU) (uint64, error)
	// Known is like Cost, but does not create a context to find out.
	Known(gpu contextcost.GPU) (uint64, bool)
}

// Driver is NVML with a time limit for one query. Queries may take seconds per GPU on an idle node.
type Driver struct {
	nvml.Interface
	// Partitioner is the same driver, where it supports MIG; nil otherwise.
	Partitioner nvml.Partitioner
	Timeout     time.Duration
}

// Limit returns a context that ends after the time limit of one query.
func (d *Driver) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.Timeout)
}

// Clock is the time, which tests replace.
type Clock struct {
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}

// GroupKey identifies a device group of a node.
type GroupKey struct{ Type, Name string }

// DeviceStats are statistics by device ID.
type DeviceStats map[string]*ndevice.DeviceStats

// Join merges groups that have the same name. Their attributes are those of the device with the lowest ID, so that they
// do not depend on the order of the groups, which may change.
func Join(groups []*ndevice.DeviceGroup) []*ndevice.DeviceGroup {
	all := []*ndevice.DeviceGroup{}
	byKey := make(map[GroupKey]*ndevice.DeviceGroup)
	for _, group := range groups {
		key := GroupKey{group.Type, group.Name}
		first := byKey[key]
		if first == nil {
			byKey[key] = group
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
		countHealthy(group)
	}
	return all
}

const (
	// SliceType is the device type of slices, as in jobspecs: nvidia/slice.
	SliceType = "slice"
	// GPUType is the device type of whole GPUs and of MIG instances, as in jobspecs: nvidia/gpu. It is that of
	// nomad-device-nvidia, so that jobs for that plugin run unchanged.
	GPUType = "gpu"
)

// countHealthy sets the attribute that counts healthy devices. The count is part of the node's class on purpose: once
// Nomad has found too few healthy devices on one node, it skips all others of that class, and does not retry a waiting
// job when the devices are healthy again.
func countHealthy(group *ndevice.DeviceGroup) {
	count := int64(0)
	for _, d := range group.Devices {
		if d.Healthy {
			count++
		}
	}
	name := "healthy_devices"
	if group.Type == SliceType {
		name = "healthy_slices"
	}
	group.Attributes[name] = structs.NewIntAttribute(count, "")
}

// MarkUnhealthy makes all healthy devices of a group unhealthy, for a reason.
func MarkUnhealthy(group *ndevice.DeviceGroup, reason string) {
	for _, d := range group.Devices {
		if d.Healthy {
			d.Healthy, d.HealthDesc = false, reason
		}
	}
}
