package nvidia

import (
	"regexp"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/gpunode"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

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
		if at := ocispec.ContainerPath(file); gpunode.Is(at) {
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
