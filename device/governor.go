package device

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/governor/keeper"
)

// installedCLI is where the command tranche is installed.
const installedCLI = "/usr/bin/tranche"

// governed keeps the governor running for GPUs whose claims compute in turns. The keeper is nil where there are none.
type governed struct{ keeper *keeper.Keeper }

// newGoverned returns what has started nothing yet.
func newGoverned(n *node) governed {
	if !n.sharing.anyShares() {
		return governed{}
	}
	return governed{keeper.New(keeper.Options{
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

// start keeps the governor running until the context ends. It continues then: tasks need it. The returned function blocks until
// it is no longer watched.
func (g governed) start(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	if g.keeper != nil {
		running.Go(func() { g.keeper.Run(ctx) })
	}
	return running.Wait
}

// mark has healthy devices of a GPU say why no governor runs. They can be used: their tasks compute as the driver lets them.
func (g governed) mark(gpu *share.GPU, group *ndevice.DeviceGroup) {
	if g.keeper == nil || !gpu.Shares {
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
