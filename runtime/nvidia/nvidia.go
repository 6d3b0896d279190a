// Package nvidia recognises and removes what in an OCI spec gives a container one of NVIDIA's GPUs or requests one from
// NVIDIA's tools.
//
// It is used for containers with claims, whose GPUs the edits add, and for containers without claims.
package nvidia

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// Remove removes from a spec all that is NVIDIA's except the variable NVIDIA_VISIBLE_DEVICES.
func (d Devices) Remove(spec *specs.Spec) {
	for _, list := range ocispec.HookLists(spec) {
		*list = slices.DeleteFunc(slices.Clone(*list), isHook)
	}
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(mount specs.Mount) bool {
		return isRequestVolume(mount) || d.mounts(mount)
	})
	removeDeviceRequests(spec.Annotations)
	if spec.Linux != nil {
		d.removeDevices(spec.Linux)
	}
}

// removeDevices removes the device nodes, and the device cgroup's rules that allow them.
func (d Devices) removeDevices(linux *specs.Linux) {
	removed := map[[2]int64]bool{}
	linux.Devices = slices.DeleteFunc(slices.Clone(linux.Devices), func(device specs.LinuxDevice) bool {
		if !d.node(device) {
			return false
		}
		removed[[2]int64{device.Major, device.Minor}] = true
		return true
	})
	if linux.Resources == nil {
		return
	}
	linux.Resources.Devices = slices.DeleteFunc(slices.Clone(linux.Resources.Devices), func(rule specs.LinuxDeviceCgroup) bool {
		return d.rule(rule) ||
			rule.Allow && rule.Major != nil && rule.Minor != nil && removed[[2]int64{*rule.Major, *rule.Minor}]
	})
}

// node reports whether a device node is one of NVIDIA's, by its name or by its numbers.
func (d Devices) node(device specs.LinuxDevice) bool {
	return IsNode(ocispec.ContainerPath(device.Path)) || d.has(device.Type, device.Major, device.Minor)
}

// rule reports whether a rule of the device cgroup allows an NVIDIA GPU, whose node the container may create itself. A rule
// that allows every device does not count: see allowsEveryDevice.
func (d Devices) rule(rule specs.LinuxDeviceCgroup) bool {
	if !rule.Allow || rule.Major == nil {
		return false
	}
	minor := int64(-1) // any
	if rule.Minor != nil {
		minor = *rule.Minor
	}
	kind := rule.Type
	if kind == "" || kind == "a" {
		kind = "c"
	}
	return d.has(kind, *rule.Major, minor)
}
