package share

import (
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

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

// Values of the attribute "isolation": what isolates the tasks on a GPU from each other.
const (
	IsolationNone      = "none"      // nothing
	IsolationMemory    = "memory"    // each has a memory limit; they take turns at computing
	IsolationMPS       = "mps"       // each has a limit of memory and of multiprocessors; they compute side by side
	IsolationHardware  = "hardware"  // memory, computing and faults are separate
	IsolationExclusive = "exclusive" // there is one task only
)
