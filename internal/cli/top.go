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
	"github.com/tranche-gpu/tranche/usage"
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

Keys: s and S sort by the next and the previous column, / filters, Esc removes the filter, d shows and hides dormant claims, the
space bar pauses, the arrows scroll, and q quits. Unknown values are shown as "-". UNUSED is the memory that a claim reserved and did
not use times the hours, in the last day, which an agent has to account.

--once prints the state as text. --json prints a line of JSON at each interval, and one line with --once. With --once the
exit status is 1 if the ledger or the GPUs cannot be read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.top(cmd.Context(), o) },
	}
	o.addFlags(cmd)
	cmd.Flags().DurationVar(&o.Interval, "interval", 2*time.Second, "`time` between two updates")
	cmd.Flags().StringVar(&o.Sort, "sort", "unused", "`order` of the claims: gpu, unused, used, peak, limit, busy, refused or name")
	cmd.Flags().BoolVar(&o.Dormant, "dormant", false, "show dormant claims, too")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "show only claims with this `text` in their row")
	cmd.Flags().BoolVar(&o.once, "once", false, "print the state once and exit")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, for programs")
	addSliceMemory(cmd, &o.sliceMemory)
	return cmd
}

// totalsEvery is how often top reads what is accounted, which an agent collects once a minute.
const totalsEvery = 30 * time.Second

// readTotals returns a function that reads what is accounted of the node's claims, and one that ends it; nil if nothing is, or it
// cannot be read.
func (a *app) readTotals(ctx context.Context, p place) (read func() *usage.Totals, end func()) {
	config, err := a.usageConfig()
	if err != nil || config.Database == "" && !usage.Exists(p.stateDir) {
		return nil, nil
	}
	store, err := usage.Open(ctx, usagePlace(p, config))
	if err != nil {
		return nil, nil
	}
	var last *usage.Totals
	var at time.Time
	read = func() *usage.Totals {
		if time.Since(at) > totalsEvery {
			last, _ = store.Totals(ctx)
			at = time.Now()
		}
		return last
	}
	return read, func() { _ = store.Close() }
}

func (a *app) top(ctx context.Context, o topOptions) error {
	m, err := a.monitor(o.place, o.sliceMemory, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	if totals, closeUsage := a.readTotals(ctx, o.place); totals != nil {
		defer closeUsage()
		m.Usage = totals
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
