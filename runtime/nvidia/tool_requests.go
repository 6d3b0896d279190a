package nvidia

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// Containers request GPUs from NVIDIA's runtime and hook by a variable, by annotations, or by volumes.

// requestVolumes is the directory with a mount for each GPU that is requested by a volume.
const requestVolumes = "/var/run/nvidia-container-devices"

// isNoDevice reports whether a value of NVIDIA_VISIBLE_DEVICES requests no GPU from NVIDIA's tools.
func isNoDevice(value string) bool {
	value = strings.TrimSpace(value)
	return value == "" || value == claim.NoDevices || value == "none"
}

// isRequestVolume reports whether a mount requests a GPU by its destination.
func isRequestVolume(mount specs.Mount) bool {
	at := ocispec.ContainerPath(mount.Destination)
	return at == requestVolumes || strings.HasPrefix(at, requestVolumes+"/")
}

// requestsDevices reports whether the value of an annotation names CDI devices of NVIDIA's. NVIDIA's runtime reads those
// before any variable. Which keys it reads depends on its configuration, so values of all keys count.
func requestsDevices(value string) bool {
	return strings.Contains(value, "nvidia.com/") && slices.ContainsFunc(strings.Split(value, ","), isCDIDevice)
}

// removeDeviceRequests removes the names of NVIDIA's CDI devices from annotations.
func removeDeviceRequests(annotations map[string]string) {
	for key, value := range annotations {
		if !requestsDevices(value) {
			continue
		}
		if others := slices.DeleteFunc(strings.Split(value, ","), isCDIDevice); len(others) > 0 {
			annotations[key] = strings.Join(others, ",")
		} else {
			delete(annotations, key)
		}
	}
}

// isCDIDevice reports whether a text is the name of a CDI device of NVIDIA's, such as nvidia.com/gpu=all or
// runtime.nvidia.com/gpu=0.
func isCDIDevice(name string) bool {
	vendor, _, _ := parser.ParseDevice(strings.TrimSpace(name))
	return vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com")
}
