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
		Short: "Show GPUs and claims in the terminal, updated continuously",
		Long: `Show GPUs and claims in the terminal, updated continuously. Run it as root, since the ledger belongs to root.

Keys: s and S sort by the next and the previous column, / filters, Esc removes the filter, the space bar pauses, the arrows
scroll, and q quits. Unknown values are shown as "-".

--once prints the state as text. --json prints a line of JSON at each interval, and one line with --once. With --once the
exit status is 1 if the ledger or the GPUs cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.top(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	cmd.Flags().DurationVar(&o.Interval, "interval", 2*time.Second, "`time` between two updates")
	cmd.Flags().StringVar(&o.Sort, "sort", "gpu", "`order` of the claims: gpu, used, peak, limit, busy, refused or name")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "show only claims with this `text` in their row")
	cmd.Flags().BoolVar(&o.once, "once", false, "print the state once and exit")
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
