package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/internal/cli/private"
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

// gpuChoice is the GPU that somebody wants: its index, its UUID or the beginning of its UUID, and where it says so.
type gpuChoice struct{ from, gpu string }

// gpuFlag names the GPU of a command, gpuFlagRemedy what to do if nothing else does so clearly.
const (
	gpuFlag       = "--gpu"
	gpuFlagRemedy = "name one with " + gpuFlag
)

// chosenGPU returns the GPU that the flag names, or else the environment: CUDA's variable, and that of NVIDIA's container tools,
// which Nomad's device plugins set for tasks, too; or else the first one.
func chosenGPU(flag string, environ []string, node *nvml.Node) (gpuChoice, error) {
	if flag != "" {
		return gpuChoice{gpuFlag, flag}, nil
	}
	const cuda, tools, order = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
	if list, set := private.LookupEnv(environ, cuda); set {
		c, err := onlyGPU(cuda, list)
		byBus, _ := private.LookupEnv(environ, order)
		if _, notNumber := strconv.Atoi(c.gpu); err == nil && notNumber == nil && byBus != "PCI_BUS_ID" && !alike(node) {
			err = fmt.Errorf("%s=%s: CUDA numbers GPUs that differ otherwise than nvidia-smi does: set %s=PCI_BUS_ID, or %s",
				cuda, list, order, gpuFlagRemedy)
		}
		return c, err
	}
	list, _ := private.LookupEnv(environ, tools)
	// In a container that has one GPU, the variable may have the number that it has outside.
	if slices.Contains([]string{"", "all", "void", "none"}, list) || len(node.GPUs)+len(node.Failed) == 1 {
		return gpuChoice{gpuFlag, "0"}, nil
	}
	return onlyGPU(tools, list)
}

// onlyGPU returns the GPU that a list in the environment names. A command has only one.
func onlyGPU(variable, list string) (gpuChoice, error) {
	var gpus []string
	for gpu := range strings.SplitSeq(list, ",") {
		gpu = strings.TrimSpace(gpu)
		if gpu == "" || strings.HasPrefix(gpu, "-") {
			break // CUDA ignores the rest
		}
		gpus = append(gpus, gpu)
	}
	switch len(gpus) {
	case 0:
		return gpuChoice{}, fmt.Errorf("%s=%s names no GPU: %s", variable, list, gpuFlagRemedy)
	case 1:
		return gpuChoice{variable, gpus[0]}, nil
	}
	return gpuChoice{}, fmt.Errorf("%s=%s names %d GPUs, and a command has one: %s", variable, list, len(gpus), gpuFlagRemedy)
}

// alike reports whether all GPUs of a node are of one model, so that CUDA numbers them as NVML does.
func alike(node *nvml.Node) bool {
	return !slices.ContainsFunc(node.GPUs, func(g nvml.GPU) bool { return g.Name != node.GPUs[0].Name })
}

// find returns the GPU, or the MIG instance.
func (c gpuChoice) find(node *nvml.Node) (nvml.GPU, error) {
	if index, err := strconv.Atoi(c.gpu); err == nil {
		return c.byIndex(node, index)
	}
	var found []nvml.GPU
	for _, g := range allGPUs(node) {
		if g.UUID == c.gpu {
			found = []nvml.GPU{g}
			break
		}
		if c.gpu != "" && strings.HasPrefix(g.UUID, c.gpu) {
			found = append(found, g)
		}
	}
	switch len(found) {
	case 1:
		return found[0], c.checkWhole(node, found[0])
	case 0:
		return nvml.GPU{}, fmt.Errorf("%s: no GPU has the UUID %q: %s", c.from, c.gpu, describeGPUs(node))
	default:
		return nvml.GPU{}, fmt.Errorf("%s: %d GPUs have a UUID that begins with %q: %s",
			c.from, len(found), c.gpu, describeGPUs(node))
	}
}

func (c gpuChoice) byIndex(node *nvml.Node, index int) (nvml.GPU, error) {
	for _, g := range node.GPUs {
		if g.Index == index {
			return g, c.checkWhole(node, g)
		}
	}
	for _, f := range node.Failed {
		if f.Index == index {
			return nvml.GPU{}, fmt.Errorf("%s: GPU %d does not answer: %w", c.from, index, f.Err)
		}
	}
	return nvml.GPU{}, fmt.Errorf("%s: there is no GPU %d: %s", c.from, index, describeGPUs(node))
}

// checkWhole refuses a GPU of which only the MIG instances can be used.
func (c gpuChoice) checkWhole(node *nvml.Node, g nvml.GPU) error {
	if !g.MIG.Enabled {
		return nil
	}
	return fmt.Errorf("%s: GPU %d is split into MIG instances: name one by its UUID with %s: %s", c.from, g.Index, gpuFlag, describeGPUs(node))
}

// allGPUs returns the GPUs of a node, and all of their MIG instances.
func allGPUs(node *nvml.Node) []nvml.GPU {
	return node.WithInstances(func(string) bool { return true })
}

func describeGPUs(node *nvml.Node) string {
	if len(node.GPUs) == 0 {
		return "this node has no GPU that answers"
	}
	var all []string
	for _, g := range allGPUs(node) {
		all = append(all, fmt.Sprintf("%d (%s, %s)", g.Index, g.Name, g.UUID))
	}
	return "this node has " + strings.Join(all, ", ")
}
