package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/runtime/nvidia"
)

// nodeDirs are the directories of NVIDIA's device nodes: GPUs and their control devices, capabilities of MIG, and memory
// channels between nodes.
var nodeDirs = []string{"dev", "dev/nvidia-caps", "dev/nvidia-caps-imex-channels"}

// refuseOtherGPUs refuses a container that has NVIDIA device nodes other than those of its claims' GPUs. Tranche's edits leave
// no others in the spec, so NVIDIA's runtime or prestart hook has added them, for a request that only their configuration
// defines.
//
// It compares names only: to open a node under another name, a process needs the device cgroup's permission, which the spec
// sets.
func refuseOtherGPUs(root *os.Root, own []string) error {
	var others []string
	for _, dir := range nodeDirs {
		nodes, err := gpuNodes(root, dir)
		if err != nil {
			return fmt.Errorf("find other GPUs in the container's /%s: %w", dir, err)
		}
		others = append(others, nodes...)
	}
	others = slices.DeleteFunc(others, func(node string) bool { return slices.Contains(own, node) })
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("the container has a claim on the GPU of %s, and another tool has added %s, which its claim does "+
		"not include; start it without --gpus and without NVIDIA's CDI devices, and where tranche-runtime "+
		"becomes nvidia-container-runtime have it become runc, or take swarm-resource and annotation-prefixes out of "+
		"/etc/nvidia-container-runtime/config.toml", strings.Join(own, ", "), strings.Join(others, ", "))
}

// refuseOthersIn is refuseOtherGPUs for the root file system at dir.
func refuseOthersIn(dir string, own []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return refuseOtherGPUs(root, own)
}

// gpuNodes returns the paths of NVIDIA's nodes in a directory of the container. Files in /dev may be the image's or a volume's:
// only their names are read, and nothing is opened.
func gpuNodes(root *os.Root, dir string) ([]string, error) {
	directory, err := root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	entries, err := directory.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, entry := range entries {
		node := path.Join("/", dir, entry.Name())
		if nvidia.IsNode(node) && !entry.IsDir() {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}
