package runtime

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/tranche-gpu/tranche/claim"
)

// NVIDIA's runtime and hook are asked for GPUs by a variable, by annotations, or by volumes.

// requestVolumes holds a mount for each GPU that is asked for by a volume.
const requestVolumes = "/var/run/nvidia-container-devices"

// visibleDevices is the container's NVIDIA_VISIBLE_DEVICES. Of a variable that is set twice, the last counts.
func visibleDevices(spec *specs.Spec) string {
	if spec.Process == nil {
		return ""
	}
	for _, entry := range slices.Backward(spec.Process.Env) {
		if value, ok := strings.CutPrefix(entry, claim.VisibleDevices+"="); ok {
			return value
		}
	}
	return ""
}

// isNoDevice tells whether a value of NVIDIA_VISIBLE_DEVICES asks for no GPU. NVIDIA's tools read it so, too.
func isNoDevice(value string) bool {
	value = strings.TrimSpace(value)
	return value == "" || value == claim.NoDevices || value == "none"
}

// isRequestVolume tells whether a mount asks for a GPU by its place.
func isRequestVolume(mount specs.Mount) bool {
	at := containerPath(mount.Destination)
	return at == requestVolumes || strings.HasPrefix(at, requestVolumes+"/")
}

// requestsDevices tells whether the value of an annotation names CDI devices of NVIDIA's. NVIDIA's runtime heeds those
// before any variable. Under which keys it looks, its configuration says, so all are looked at.
func requestsDevices(value string) bool {
	return strings.Contains(value, "nvidia.com/") && slices.ContainsFunc(strings.Split(value, ","), isNVIDIADevice)
}

// withoutDeviceRequests takes the names of NVIDIA's CDI devices out of annotations.
func withoutDeviceRequests(annotations map[string]string) {
	for key, value := range annotations {
		if !requestsDevices(value) {
			continue
		}
		if others := slices.DeleteFunc(strings.Split(value, ","), isNVIDIADevice); len(others) > 0 {
			annotations[key] = strings.Join(others, ",")
		} else {
			delete(annotations, key)
		}
	}
}

// isNVIDIADevice tells whether a text is the name of a CDI device of NVIDIA's, such as nvidia.com/gpu=all or
// runtime.nvidia.com/gpu=0.
func isNVIDIADevice(name string) bool {
	vendor, _, _ := parser.ParseDevice(strings.TrimSpace(name))
	return vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com")
}
