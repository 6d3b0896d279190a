package runtime

import (
	"regexp"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/gpunode"
)

// wholeGPUNode matches the nodes of GPUs themselves, and tells their minor number.
var wholeGPUNode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/dev/nvidia([0-9]+)$`) })

// NodePaths are the paths of NVIDIA's device nodes in a spec: those that a container gets, as devices or by mounts.
func NodePaths(spec *specs.Spec) []string {
	var paths []string
	add := func(file string) {
		if at := containerPath(file); gpunode.Is(at) {
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
