package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/agent/top"
)

type topOptions struct {
	place
	top.Options
	once, json  bool
	sliceMemory string
}

func (a *app) topCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show GPUs and claims in the terminal, updated all the time",
		Long: `Show GPUs and claims in the terminal, updated all the time.

Keys: q quits, s sorts by the next column (S by the one before), / filters, Esc removes the filter, the space bar pauses, and the
arrows scroll. A value that is unknown is shown as "-".

With --once the state is printed as text, with --json as a line of JSON at each interval; --once --json prints one line. With
--once the exit status is 1 where the ledger or the GPUs cannot be read.
The ledger is for root alone, so this wants to run as root.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.top(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	cmd.Flags().DurationVar(&o.Interval, "interval", 2*time.Second, "`time` between two updates")
	cmd.Flags().StringVar(&o.Sort, "sort", "gpu", "`order` of the claims: gpu, used, peak, limit, busy, refused or name")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "show only claims in whose row this `text` occurs")
	cmd.Flags().BoolVar(&o.once, "once", false, "print the state once, and end")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, for programs")
	addSliceMemory(cmd, &o.sliceMemory)
	return cmd
}

func (a *app) top(ctx context.Context, o topOptions) error {
	m, err := a.monitor(o.place, o.sliceMemory, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	o.Snapshot = m.Snapshot
	o.Node, _ = os.Hostname()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	switch {
	case o.json:
		err = top.JSON(ctx, o.Options, o.once, a.stdout)
	case o.once:
		err = top.Once(ctx, o.Options, a.stdout)
	default:
		err = top.Run(ctx, o.Options, a.stdin, a.stdout, a.environ)
	}
	if errors.Is(err, top.ErrIncomplete) {
		return &exitError{code: exitFailure} // what was printed tells the rest
	}
	return err
}
