package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/runtime/gpunode"
)

// nodeDirs are where NVIDIA's device nodes are: GPUs and their control, and the capabilities of MIG and of memory
// channels between nodes.
var nodeDirs = []string{"dev", "dev/nvidia-caps", "dev/nvidia-caps-imex-channels"}

// refuseOtherGPUs refuses a container that has device nodes of NVIDIA's beside its own, those of its claims' GPUs. The
// spec had no others when tranche-runtime was done with it; somebody who came later has brought them: NVIDIA's runtime,
// or NVIDIA's hook at prestart, asked in a way that their configuration knows and we don't.
//
// It goes by names alone: whoever makes nodes of his own making needs the devices' cgroup to open them, and what that
// allows is the spec's.
func refuseOtherGPUs(root *os.Root, own []string) error {
	var others []string
	for _, dir := range nodeDirs {
		nodes, err := gpuNodes(root, dir)
		if err != nil {
			return fmt.Errorf("look for the GPUs of others in the container's /%s: %w", dir, err)
		}
		others = append(others, nodes...)
	}
	others = slices.DeleteFunc(others, func(node string) bool { return slices.Contains(own, node) })
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("the container has a claim on the GPU of %s, and somebody else has given it %s, too, which its "+
		"claim does not cover; start it without --gpus and without NVIDIA's CDI devices, and where tranche-runtime "+
		"becomes nvidia-container-runtime have it become runc, or take swarm-resource and annotation-prefixes out of "+
		"/etc/nvidia-container-runtime/config.toml", strings.Join(own, ", "), strings.Join(others, ", "))
}

// refuseOthersIn does so for the root file system at dir.
func refuseOthersIn(dir string, own []string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return refuseOtherGPUs(root, own)
}

// gpuNodes are the paths of NVIDIA's nodes in a directory of the container. What is in /dev may be the image's or a
// volume's: of a link only the name counts, and nothing is opened.
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
		if gpunode.Is(node) && !entry.IsDir() {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}
