package hooks

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/hooks/drivercopies"
	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// createContainer refuses a container that has GPUs other than its claims', and shadows the driver copies in its root file
// system unless the container has no limit.
//
// It runs in the container's mount namespace, when all its mounts are made and the other hooks have run, before the root is
// changed: so it sees the container's files as its processes will, and the host's /proc and our shadow libraries still
// under their own paths.
func createContainer(opts options, state *specs.State) error {
	program, err := bundle.ReadProgram(state.Bundle)
	if err != nil {
		return fmt.Errorf("look for driver copies in container %s: %w", state.ID, err)
	}
	if err := refuseOthersIn(program.RootDir, opts.gpuNodes); err != nil {
		return fmt.Errorf("check the GPUs of container %s: %w", state.ID, err)
	}
	if opts.unlimited {
		return nil
	}
	libraries := shadow.Libraries{Dir: opts.shadowDir, Governed: opts.governed, ComputeOnly: opts.computeOnly}
	if err := drivercopies.Overmount(program, libraries); err != nil {
		return fmt.Errorf("shadow the driver copies in container %s: %w", state.ID, err)
	}
	return nil
}
