package nvidia

import (
	"regexp"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// IsNode reports whether a clean path is that of one of NVIDIA's device nodes: GPUs, their control devices, MIG's capabilities,
// NVLink's switches, memory channels between nodes, and those of later drivers.
func IsNode(file string) bool { return strings.HasPrefix(file, "/dev/nvidia") }

var gpuNode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/dev/nvidia([0-9]+)$`) })

// GPUMinor returns the minor number in the path of a GPU's own device node, such as "0" for /dev/nvidia0, or false for any
// other path.
func GPUMinor(node string) (string, bool) {
	match := gpuNode().FindStringSubmatch(node)
	if match == nil {
		return "", false
	}
	return match[1], true
}

// NodePaths returns the paths of NVIDIA's device nodes that a container gets, as devices or by mounts.
func NodePaths(spec *specs.Spec) []string {
	var paths []string
	add := func(file string) {
		if at := ocispec.ContainerPath(file); IsNode(at) {
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
