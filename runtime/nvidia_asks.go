package runtime

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
)

// asks lists by what a container asks for GPUs without a claim. The devices of one that has every device are no ask: it
// was given all there are, and GPUs among them because the node has some.
func (n nvidiaParts) asks(spec *specs.Spec) []string {
	everyDevice := allowsEveryDevice(spec)
	var asked []string
	if value := visibleDevices(spec); !isNoDevice(value) {
		asked = append(asked, fmt.Sprintf("%s=%s", claim.VisibleDevices, excerpt(value)))
	}
	for _, hook := range allHooks(spec) {
		if program := nvidiaProgram(*hook); program != "" {
			asked = append(asked, "the hook "+excerpt(program))
		}
	}
	for _, mount := range spec.Mounts {
		if isRequestVolume(mount) || !everyDevice && n.devices.mounts(mount) {
			asked = append(asked, "a mount at "+excerpt(mount.Destination))
		}
	}
	for name, value := range spec.Annotations {
		if requestsDevices(value) {
			asked = append(asked, "the annotation "+excerpt(name))
		}
	}
	if !everyDevice && spec.Linux != nil {
		asked = append(asked, n.deviceAsks(spec.Linux)...)
	}
	return firstFew(asked)
}

// deviceAsks lists the devices by which a container asks for GPUs. Engines write a rule for each node that they bring, so
// rules count where there is no node.
func (n nvidiaParts) deviceAsks(linux *specs.Linux) []string {
	var asked []string
	for _, device := range linux.Devices {
		if n.node(device) {
			asked = append(asked, "the device "+excerpt(device.Path))
		}
	}
	if len(asked) > 0 || linux.Resources == nil {
		return asked
	}
	for _, rule := range linux.Resources.Devices {
		if n.rule(rule) {
			asked = append(asked, "a rule for the device numbers "+numbers(rule))
		}
	}
	return asked
}

// numbers are those of the devices that a rule is about, as in /proc/devices and in Docker's --device-cgroup-rule.
func numbers(rule specs.LinuxDeviceCgroup) string {
	if rule.Minor == nil {
		return fmt.Sprintf("%d:*", *rule.Major)
	}
	return fmt.Sprintf("%d:%d", *rule.Major, *rule.Minor)
}

// excerpt is the beginning of a text that the container's owner chose, in a form that is fit for a log.
func excerpt(text string) string {
	const most = 60
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%q", text)
}

// firstFew keeps an error short.
func firstFew(all []string) []string {
	const most = 4
	slices.Sort(all)
	if len(all) > most {
		all = append(all[:most:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return all
}
