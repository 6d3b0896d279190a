package nvidia

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
	"github.com/tranche-gpu/tranche/runtime/oneline"
)

// Requests lists what in a spec requests GPUs, in words for an error. The devices of a container that has every device do
// not count: it has GPUs among them because the node has some.
func (d Devices) Requests(spec *specs.Spec) []string {
	everyDevice := allowsEveryDevice(spec)
	var found []string
	if value := ocispec.Variable(spec, claim.VisibleDevices); !isNoDevice(value) {
		found = append(found, fmt.Sprintf("%s=%s", claim.VisibleDevices, oneline.Excerpt(value)))
	}
	for _, hook := range ocispec.Hooks(spec) {
		if program := hookProgram(*hook); program != "" {
			found = append(found, "the hook "+oneline.Excerpt(program))
		}
	}
	for _, mount := range spec.Mounts {
		if isRequestVolume(mount) || !everyDevice && d.mounts(mount) {
			found = append(found, "a mount at "+oneline.Excerpt(mount.Destination))
		}
	}
	for name, value := range spec.Annotations {
		if requestsDevices(value) {
			found = append(found, "the annotation "+oneline.Excerpt(name))
		}
	}
	if !everyDevice && spec.Linux != nil {
		found = append(found, d.deviceRequests(spec.Linux)...)
	}
	return firstFew(found)
}

// deviceRequests lists the device nodes that give a container GPUs, or if there are none the rules of the device cgroup:
// engines add a rule for each node.
func (d Devices) deviceRequests(linux *specs.Linux) []string {
	var found []string
	for _, device := range linux.Devices {
		if d.node(device) {
			found = append(found, "the device "+oneline.Excerpt(device.Path))
		}
	}
	if len(found) > 0 || linux.Resources == nil {
		return found
	}
	for _, rule := range linux.Resources.Devices {
		if d.rule(rule) {
			found = append(found, "a rule for the device numbers "+numbers(rule))
		}
	}
	return found
}

// numbers returns the device numbers of a rule, written as in Docker's --device-cgroup-rule.
func numbers(rule specs.LinuxDeviceCgroup) string {
	if rule.Minor == nil {
		return fmt.Sprintf("%d:*", *rule.Major)
	}
	return fmt.Sprintf("%d:%d", *rule.Major, *rule.Minor)
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
