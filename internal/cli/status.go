package cli

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/internal/cli/report"
)

type statusOptions struct {
	place
	sliceMemory string
	json        bool
}

func (a *app) statusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the GPUs of this node, their slices, and who holds them",
		Long: `Show the GPUs of this node, their slices, and who holds them.

Run it as root, since the ledger belongs to root. It does not show what other users run under "tranche run".

The exit status is 1 if the ledger or the GPUs cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.status(cmd.Context(), o) },
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, for programs")
	addSliceMemory(cmd, &o.sliceMemory)
	o.addFlags(cmd)
	return cmd
}

func (a *app) status(ctx context.Context, o statusOptions) error {
	m, err := a.monitor(o.place, o.sliceMemory, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	m.Runs = func() []*monitor.Claim { return report.Runs(o.runDir) }
	s := m.Read(ctx, nvmlPatience)
	m.AddOutside(ctx, s, nvmlPatience)
	r := report.New(s)
	if o.json {
		err = a.printJSON(r)
	} else {
		err = r.Print(a.stdout)
	}
	if err == nil && (r.LedgerError != "" || r.NVMLError != "") {
		return &exitError{code: exitFailure} // the report tells the rest
	}
	return err
}
