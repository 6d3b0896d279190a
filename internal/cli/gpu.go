package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// nvmlPatience bounds a look at the GPUs. A driver that is not kept loaded takes seconds to begin; one that does not
// answer at all must not hold up the command line.
const nvmlPatience = 20 * time.Second

// readGPUs asks NVML once.
func (a *app) readGPUs(ctx context.Context, driverRoot string) (*nvml.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, nvmlPatience)
	defer cancel()
	library := a.openNVML(driverRoot)
	node, err := library.Read(ctx)
	return node, errors.Join(err, library.Close(ctx))
}

// chooseGPU finds the GPU that --gpu names: its index, its UUID, or the beginning of its UUID.
func chooseGPU(node *nvml.Node, choice string) (nvml.GPU, error) {
	if index, err := strconv.Atoi(choice); err == nil {
		return gpuByIndex(node, index)
	}
	var found []nvml.GPU
	for _, g := range node.GPUs {
		if g.UUID == choice {
			return g, nil
		}
		if choice != "" && strings.HasPrefix(g.UUID, choice) {
			found = append(found, g)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nvml.GPU{}, fmt.Errorf("--gpu: no GPU has the UUID %q: %s", choice, describeGPUs(node))
	default:
		return nvml.GPU{}, fmt.Errorf("--gpu: %d GPUs have a UUID that begins with %q: %s",
			len(found), choice, describeGPUs(node))
	}
}

func gpuByIndex(node *nvml.Node, index int) (nvml.GPU, error) {
	for _, g := range node.GPUs {
		if g.Index == index {
			return g, nil
		}
	}
	for _, f := range node.Failed {
		if f.Index == index {
			return nvml.GPU{}, fmt.Errorf("--gpu: GPU %d does not answer: %w", index, f.Err)
		}
	}
	return nvml.GPU{}, fmt.Errorf("--gpu: there is no GPU %d: %s", index, describeGPUs(node))
}

func describeGPUs(node *nvml.Node) string {
	if len(node.GPUs) == 0 {
		return "this node has no GPU that answers"
	}
	var all []string
	for _, g := range node.GPUs {
		all = append(all, fmt.Sprintf("%d (%s, %s)", g.Index, g.Name, g.UUID))
	}
	return "this node has " + strings.Join(all, ", ")
}
