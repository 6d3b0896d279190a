package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/printable"
	"github.com/tranche-gpu/tranche/usage"
	"github.com/tranche-gpu/tranche/usage/bill"
)

type usageOptions struct {
	place
	by, format string
	node       string
	from, to   stated
	byIsSet    bool
	schema     bool
	sort       string
}

// The orders of `tranche usage`.
const (
	sortByName   = "name"
	sortByUnused = "unused"
)

// The formats of `tranche usage`.
const (
	formatTable = "table"
	formatCSV   = "csv"
	formatJSON  = "json"
	formatFocus = "focus"
)

func (a *app) usageCommand() *cobra.Command {
	var o usageOptions
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Report what jobs, namespaces, GPUs or nodes reserved and used, by the hour",
		Long: `Report what jobs, namespaces, GPUs or nodes reserved and used.

Reservations are billed: GiB of memory times hours, and parts of GPUs times hours. Times are whole hours in UTC. Gaps in
the records are listed below the table.

If the configuration file names a database that nodes share, the report covers all of them.`,
		Example: `  tranche usage --from 2026-11-01 --to 2026-12-01
  tranche usage --by namespace --format csv > november.csv
  tranche usage --sort unused
  tranche usage --schema | psql --dbname tranche`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.schema {
				_, err := fmt.Fprint(a.stdout, usage.PostgresSchema())
				return err
			}
			o.byIsSet = cmd.Flags().Changed("by")
			return a.usage(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.by, "by", string(bill.ByJob), "one row for each `job`, namespace, gpu or node")
	cmd.Flags().StringVar(&o.node, "node", "", "report only the node of this `name`")
	cmd.Flags().Var(&o.from, "from", "first hour, as a `time` such as 2026-11-01 or 2026-11-01T15:00 (default: this month)")
	cmd.Flags().Var(&o.to, "to", "`time` of the hour after the last (default: now)")
	cmd.Flags().StringVar(&o.format, "format", formatTable, "`format`: table, csv, json or focus (FOCUS 1.2, requires prices)")
	cmd.Flags().StringVar(&o.sort, "sort", sortByName, "`order` of the rows: name, or unused, the most unused memory first")
	cmd.Flags().BoolVar(&o.schema, "schema", false, "print the statements that create the tables in a PostgreSQL database")
	o.addFlags(cmd)
	return cmd
}

func (a *app) usage(ctx context.Context, o usageOptions) error {
	by, err := bill.ParseBy(o.by)
	if err != nil {
		return fmt.Errorf("--by %w", err)
	}
	from, to, err := o.times(time.Now().UTC())
	if err != nil {
		return err
	}
	if err := o.checkFormat(); err != nil {
		return err
	}
	if o.sort != sortByName && o.sort != sortByUnused {
		return fmt.Errorf("--sort must be name or unused, got %q", o.sort)
	}
	config, err := a.usageConfig()
	if err != nil {
		return err
	}
	here := claim.HasState(o.stateDir)
	if filepath.IsAbs(o.stateDir) && !here && config.Database == "" && !usage.Exists(o.stateDir) {
		return fmt.Errorf("--state-dir: no claim was ever made in %s, so there is no usage; name the state_dir of Nomad's plugins", o.stateDir)
	}
	store, err := usage.Open(ctx, usagePlace(o.place, config))
	if err != nil {
		return err
	}
	var collectErr error
	if here || config.Database == "" { // a shared database is also read from elsewhere
		collectErr = a.collectUsage(ctx, store, o.place) // what was collected before is reported all the same
	}
	q := usage.Query{From: from, To: to, Node: o.node}
	return errors.Join(collectErr, a.writeUsage(ctx, store, o, by, q, config.Prices), store.Close())
}

// usagePlace returns where the usage of a node is kept.
func usagePlace(p place, config bill.Config) usage.Place {
	return usage.Place{StateDir: p.stateDir, Database: config.Database, Node: config.Node}
}

// times returns the hours that --from and --to name.
func (o usageOptions) times(now time.Time) (from, to time.Time, err error) {
	from = time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	to = now.Truncate(time.Hour).Add(time.Hour)
	if o.from != "" {
		if from, err = parseHour("--from", o.from.String()); err != nil {
			return from, to, err
		}
	}
	if o.to != "" {
		if to, err = parseHour("--to", o.to.String()); err != nil {
			return from, to, err
		}
	}
	if !from.Before(to) && o.from == "" {
		return from, to, fmt.Errorf("--to is %s, and without --from the report begins with this month; state --from, too", to.Format(time.RFC3339))
	}
	if !from.Before(to) {
		return from, to, fmt.Errorf("--from must be before --to, got %s and %s", from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	return from, to, nil
}

// parseHour parses a date or a time, which has to be a whole hour.
func parseHour(option, text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04", "2006-01-02 15:04", time.RFC3339, "2006-01-02T15:04Z07:00"} {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if t = t.UTC(); !t.Equal(t.Truncate(time.Hour)) {
			return t, fmt.Errorf("%s must be a whole hour, since usage is kept by the hour, got %q", option, text)
		}
		return t, nil
	}
	return time.Time{}, fmt.Errorf("%s must be a date such as 2026-11-01 or a time such as 2026-11-01T15:00, got %q", option, text)
}

func (o usageOptions) checkFormat() error {
	switch o.format {
	case formatTable, formatCSV, formatJSON:
		return nil
	case formatFocus:
		if o.byIsSet {
			return errors.New("--by does not go with --format focus, which has a row for each hour and claim")
		}
		return nil
	}
	return fmt.Errorf("--format must be table, csv, json or focus, got %q", o.format)
}

// staleAfter is how old the last collection may be: an agent makes one each minute.
const staleAfter = 10 * time.Minute

// collectUsage accounts what has happened up to now, so that the report is complete also without an agent.
func (a *app) collectUsage(ctx context.Context, store *usage.Store, p place) error {
	_, seen, err := store.Accounted(ctx)
	if err != nil {
		return err
	}
	m, err := a.monitor(p, defaultSliceMemory, a.logger())
	if err != nil {
		return err
	}
	gpus := accountedGPUs(m.Read(ctx, nvmlPatience), p.runDir)
	if _, err := store.Collect(ctx, m.Ledger, gpus, nil); err != nil { // the report has the gaps
		return err
	}
	switch {
	case seen.IsZero():
		fmt.Fprintln(a.stderr, "tranche: usage is accounted from now on; start `tranche agent`, which does so all the time")
	case time.Since(seen) > staleAfter:
		fmt.Fprintf(a.stderr, "tranche: usage was last collected at %s; start `tranche agent`, which does so all the time\n",
			seen.Format(time.RFC3339))
	}
	return nil
}

func (a *app) writeUsage(ctx context.Context, store *usage.Store, o usageOptions, by bill.By, q usage.Query, prices bill.Prices) error {
	nodes, err := store.Nodes(ctx)
	if err != nil {
		return err
	}
	if q.Node != "" && !slices.Contains(nodes, q.Node) {
		return fmt.Errorf("--node: nothing was collected on %q; there are %s", q.Node, printable.Text(strings.Join(nodes, ", ")))
	}
	if o.format == formatFocus {
		if err := bill.Focus(ctx, store, q, prices, a.stdout); err != nil {
			return fmt.Errorf("--format focus: %w", err)
		}
		return nil
	}
	r, err := bill.Make(ctx, store, by, q, prices)
	if err != nil {
		return err
	}
	if o.sort == sortByUnused {
		r.SortByUnused()
	}
	switch o.format {
	case formatCSV:
		return r.CSV(a.stdout)
	case formatJSON:
		return r.JSON(a.stdout)
	}
	return r.Table(a.stdout)
}

// usageConfig reads the settings about usage from the node's configuration, which has to be right as a whole.
func (a *app) usageConfig() (bill.Config, error) {
	if _, err := a.loadConfig(); err != nil {
		return bill.Config{}, err
	}
	return bill.LoadConfig(a.configPath())
}
