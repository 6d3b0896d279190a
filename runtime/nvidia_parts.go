package runtime

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/gpunode"
)

// nvidiaParts tells what in a spec is NVIDIA's: by what a container gets at a GPU, or asks NVIDIA's tools for one. It is
// the one answer to that, for containers with claims (see besideNVIDIA) and for those without (see withoutClaim).
type nvidiaParts struct {
	devices nvidiaDevices
}

// hostNVIDIAParts goes by the device numbers of this node.
func hostNVIDIAParts() (nvidiaParts, error) {
	devices, err := hostDevices()
	return nvidiaParts{devices: devices}, err
}

// node tells whether a device node is one of NVIDIA's, by its name or by its numbers.
func (n nvidiaParts) node(device specs.LinuxDevice) bool {
	return gpunode.Is(containerPath(device.Path)) || n.devices.has(device.Type, device.Major, device.Minor)
}

// rule tells whether a rule of the devices' cgroup lets the container at an NVIDIA GPU, whose node it may make itself. One
// for all devices there are is no rule of NVIDIA's: see allowsEveryDevice.
func (n nvidiaParts) rule(rule specs.LinuxDeviceCgroup) bool {
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
	return n.devices.has(kind, *rule.Major, minor)
}

// takeOut takes out of a spec all that is NVIDIA's but the variable NVIDIA_VISIBLE_DEVICES, which environment sets.
func (n nvidiaParts) takeOut(spec *specs.Spec) {
	for _, kind := range hookKinds(spec) {
		*kind = slices.DeleteFunc(slices.Clone(*kind), isNVIDIAHook)
	}
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(mount specs.Mount) bool {
		return isRequestVolume(mount) || n.devices.mounts(mount)
	})
	withoutDeviceRequests(spec.Annotations)
	if spec.Linux != nil {
		n.takeOutDevices(spec.Linux)
	}
}

// takeOutDevices takes the device nodes away, and the rules of the cgroup that allow these.
func (n nvidiaParts) takeOutDevices(linux *specs.Linux) {
	removed := map[[2]int64]bool{}
	linux.Devices = slices.DeleteFunc(slices.Clone(linux.Devices), func(device specs.LinuxDevice) bool {
		if !n.node(device) {
			return false
		}
		removed[[2]int64{device.Major, device.Minor}] = true
		return true
	})
	if linux.Resources == nil {
		return
	}
	linux.Resources.Devices = slices.DeleteFunc(slices.Clone(linux.Resources.Devices), func(rule specs.LinuxDeviceCgroup) bool {
		return n.rule(rule) ||
			rule.Allow && rule.Major != nil && rule.Minor != nil && removed[[2]int64{*rule.Major, *rule.Minor}]
	})
}
