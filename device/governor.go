package device

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/governor/keeper"
)

// installedCLI is where the command tranche is installed.
const installedCLI = "/usr/bin/tranche"

// governed keeps the governor running once there are GPUs whose claims compute in turns, or have their limits enforced by the
// driver. It belongs to the fingerprint loop.
type governed struct {
	keeper  *keeper.Keeper
	started bool
	running sync.WaitGroup
}

// newGoverned returns what has started nothing yet.
func newGoverned(n *node) *governed {
	return &governed{keeper: keeper.New(keeper.Options{
		Program: governorProgram(), RunDir: n.runDir, StateDir: n.stateDir, DriverRoot: n.driverRoot,
		Logger: n.logger.Named("governor"), Changed: n.wake,
	})}
}

// governorProgram returns the command tranche beside this program, or where it is installed.
func governorProgram() string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), filepath.Base(installedCLI))
		if _, err := os.Stat(beside); err == nil {
			return beside
		}
	}
	return installedCLI
}

// keep keeps the governor running until the context ends, if one of these GPUs needs it. It continues then: tasks need it.
func (g *governed) keep(ctx context.Context, gpus []share.GPU) {
	needed := func(gpu share.GPU) bool { return gpu.AnyShares() || gpu.Enforced() == claim.EnforcementDriver }
	if g.started || !slices.ContainsFunc(gpus, needed) {
		return
	}
	g.started = true
	g.running.Go(func() { g.keeper.Run(ctx) })
}

// wait blocks until the governor is no longer watched.
func (g *governed) wait() { g.running.Wait() }

// mark has healthy devices of a GPU say why no governor runs. They can be used: their tasks compute as the driver lets them.
func (g *governed) mark(gpu *share.GPU, group *ndevice.DeviceGroup) {
	if !gpu.Shares {
		return
	}
	problem := g.keeper.Problem()
	if problem == "" || problem == keeper.Starting {
		return
	}
	for _, d := range group.Devices {
		if d.Healthy && d.HealthDesc == "" {
			d.HealthDesc = "shares of compute do not hold: " + problem
		}
	}
}
