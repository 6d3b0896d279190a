package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/enforcement"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/generate"
)

// nodeInfoOptions are those of `tranche node-info refresh`.
type nodeInfoOptions struct {
	place
	hook string
}

func (a *app) nodeInfoCommand() *cobra.Command {
	group := &cobra.Command{
		Use:    "node-info",
		Short:  "What tranche-runtime has to know of this node's GPUs",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	var o nodeInfoOptions
	refresh := &cobra.Command{
		Use:   "refresh",
		Short: "Ask NVML anew, and keep a CDI specification and a list of the GPUs in the run directory",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.refreshNodeInfo(cmd.Context(), o) },
	}
	o.addFlags(refresh)
	refresh.Flags().StringVar(&o.hook, "hook", "",
		"the `command` that the CDI specification names for NVIDIA's hooks (default: this one)")
	group.AddCommand(refresh)
	return group
}

// refreshNodeInfo writes the CDI specification first: most containers need nothing else, and what a context costs is
// measured on a GPU.
func (a *app) refreshNodeInfo(ctx context.Context, o nodeInfoOptions) error {
	place, err := o.nodePlace()
	if err != nil {
		return err
	}
	if err := generate.Refresher(a.logger())(ctx, place); err != nil {
		return err
	}
	gpus, unanswered, err := a.inventory(ctx, o.place)
	if err != nil {
		return err
	}
	return errors.Join(place.KeepUnanswered(unanswered), place.KeepGPUs(gpus))
}

// nodePlace is the place with absolute paths: others look there from another directory.
func (o nodeInfoOptions) nodePlace() (gpuinfo.Place, error) {
	if o.hook == "" {
		self, err := os.Executable()
		if err != nil {
			return gpuinfo.Place{}, fmt.Errorf("find the path of this command: %w; give it with --hook", err)
		}
		o.hook = self
	}
	root, err1 := filepath.Abs(o.driverRoot)
	run, err2 := filepath.Abs(o.runDir)
	hook, err3 := filepath.Abs(o.hook)
	return gpuinfo.Place{DriverRoot: root, RunDir: run, CLIPath: hook}, errors.Join(err1, err2, err3)
}

// inventory lists the GPUs that answer, with what a context costs on each, and those that don't. A cost that
// can be measured on none is an error: that is no fault of one GPU's.
func (a *app) inventory(ctx context.Context, p place) ([]gpuinfo.GPU, []gpuinfo.Unanswered, error) {
	node, err := a.readGPUs(ctx, p.driverRoot)
	if err != nil {
		return nil, nil, err
	}
	shared, err := layout.Read(p.runDir)
	if err != nil {
		return nil, nil, err
	}
	gpus := make([]gpuinfo.GPU, 0, len(node.GPUs))
	driver := a.openNVML(p.driverRoot)
	var unanswered []gpuinfo.Unanswered
	var errs []error
	for _, failed := range node.Failed {
		unanswered = append(unanswered, gpuinfo.Unanswered{Index: failed.Index, Error: failed.Err.Error()})
	}
	for _, g := range node.WithInstances(sharedInstances(node, shared)) {
		if g.MIG.Enabled { // only its instances can be used
			continue
		}
		cost, err := a.contextCost(ctx, a.costOptions(p), costKey(node, g))
		if err != nil {
			a.logger().Warn("a GPU is left out of those that containers may ask for", "gpu", g.Index, "error", err)
			unanswered = append(unanswered, gpuinfo.Unanswered{Index: g.Index, Error: err.Error()})
			errs = append(errs, err)
			continue
		}
		known := gpuinfo.GPU{
			UUID: g.UUID, Index: g.Index, Name: g.Name, PCIBusID: g.PCIBusID, MemoryBytes: g.MemoryBytes,
			UsableBytes: g.UsableBytes(), ContextBytes: cost, ComputeCapability: g.ComputeCapability,
		}
		if g.Origin != nil {
			known.MIGParent = g.Origin.GPUUUID
			known.NoDriverLimits = enforcement.NoInstances
		} else if err := enforcement.Probe(ctx, driver, g.UUID); err != nil {
			known.NoDriverLimits = err.Error()
		} else {
			known.DriverLimits = true
		}
		gpus = append(gpus, known)
	}
	if len(gpus) == 0 && len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	return gpus, unanswered, nil
}

// sharedInstances returns which MIG instances are shared in slices: of GPUs that the device plugin has, those that it shares, and
// of others all, whoever has made them.
func sharedInstances(node *nvml.Node, shared map[string]layout.GPU) func(uuid string) bool {
	all := make(map[string]bool)
	for _, g := range node.GPUs {
		_, known := shared[g.UUID]
		for _, instance := range g.MIG.Instances {
			_, itself := shared[instance.UUID]
			all[instance.UUID] = itself || !known
		}
	}
	return func(uuid string) bool { return all[uuid] }
}

func (a *app) costOptions(p place) contextcost.Options {
	return contextcost.Options{DriverRoot: p.driverRoot, CacheFile: costCache(p.stateDir), Logger: a.logger()}
}

func costKey(node *nvml.Node, g nvml.GPU) contextcost.GPU {
	return contextcost.GPU{UUID: g.UUID, Name: g.Name, DriverVersion: node.DriverVersion}
}
