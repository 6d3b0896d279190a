package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/enforcement"
)

type driverLimitsOptions struct {
	place
	pid    int
	claims []string
}

// driverLimitsCommand is what tranche-hook runs where no governor does: it is linked statically, and cannot load NVML.
func (a *app) driverLimitsCommand() *cobra.Command {
	var o driverLimitsOptions
	cmd := &cobra.Command{
		Use:    "driver-limits",
		Short:  "Have the GPU driver hold a container that is being started to the limits of its claims",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE:   func(cmd *cobra.Command, _ []string) error { return a.setDriverLimits(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	cmd.Flags().IntVar(&o.pid, "pid", 0, "the container's init `process`")
	cmd.Flags().StringArrayVar(&o.claims, "claim", nil, "the `ID` of a claim that is bound to it")
	return cmd
}

func (a *app) setDriverLimits(ctx context.Context, o driverLimitsOptions) error {
	ledger, err := claim.Open(claim.Options{StateDir: o.stateDir, RunDir: o.runDir})
	if err != nil {
		return err
	}
	driver := a.openNVML(o.driverRoot)
	return enforcement.Grant(ctx, driver, ledger, enforcement.Request{PID: o.pid, Claims: o.claims})
}
