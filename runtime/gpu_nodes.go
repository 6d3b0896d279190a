package runtime

import (
	"regexp"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// gpuNodes begins the path of every device node of NVIDIA's: GPUs, their control, MIG's capabilities, NVLink's switches,
// memory channels between nodes, and what the next driver brings.
const gpuNodes = "/dev/nvidia"

// wholeGPUNode matches the nodes of GPUs themselves, and tells their minor number.
var wholeGPUNode = regexp.MustCompile(`^/dev/nvidia([0-9]+)$`)

// NodePaths are the paths of NVIDIA's device nodes in a spec: those that a container gets, as devices or by mounts.
func NodePaths(spec *specs.Spec) []string {
	var paths []string
	add := func(file string) {
		if at := containerPath(file); IsGPUNode(at) {
			paths = append(paths, at)
		}
	}
	if spec.Linux != nil {
		for _, device := range spec.Linux.Devices {
			add(device.Path)
		}
	}
	for _, mount := range spec.Mounts {
		add(mount.Destination)
	}
	return paths
}

// IsGPUNode tells by the path whether a device node is one of NVIDIA's.
func IsGPUNode(file string) bool { return strings.HasPrefix(file, gpuNodes) }
