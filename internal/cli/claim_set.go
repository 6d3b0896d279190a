package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/internal/cli/private"
	"github.com/tranche-gpu/tranche/internal/percent"
	"github.com/tranche-gpu/tranche/runtime/compute"
)

type setOptions struct {
	place
	compute computeFlags
}

func (a *app) claimSetCommand() *cobra.Command {
	var o setOptions
	cmd := &cobra.Command{
		Use:   "set ID [--share PERCENT] [--max PERCENT] [--priority CLASS]",
		Short: "Change a claim's part of its GPU's time while it runs",
		Long: `Change a claim's part of its GPU's time while it runs.

It counts from the governor's next turns on. What is not stated stays as it is. A restart of the task in place keeps the
change; a new allocation has what its jobspec states. --max 100 takes a ceiling away.`,
		Example: `  tranche claim set 3f2a91c0 --share 40
  tranche claim set 3f2a91c0 --share 40 --max 60 --priority high`,
		Args: withUsage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.setClaim(cmd.Context(), o, args[0]) },
	}
	o.compute.addFlags(cmd)
	o.addLedgerFlags(cmd)
	return cmd
}

func (a *app) setClaim(ctx context.Context, o setOptions, id string) error {
	r, err := o.compute.request()
	if err != nil {
		return err
	}
	if !r.Stated() {
		return errors.New("state what to change: --share, --max or --priority")
	}
	ledger, err := claim.Open(claim.Options{StateDir: o.stateDir, RunDir: o.runDir, Logger: a.logger().Named("ledger")})
	if err != nil {
		return err
	}
	c, had, to, err := changeCompute(ctx, ledger, o.runDir, id, func(had claim.Compute) (claim.Compute, error) {
		if r.Share == 0 && r.Max != 0 && r.Max < had.Share { // Over would lower the share, and nothing would bring it back
			return had, fmt.Errorf("--max: the ceiling, %s, is less than the claim's share, %s; state --share, too",
				percent.Format(r.Max), percent.Format(had.Share))
		}
		return r.Over(had)
	})
	if err != nil {
		return fmt.Errorf("claim %q: %w", id, err)
	}
	fmt.Fprintf(a.stdout, "Claim %s has %s of GPU %d (%s) now; it had %s.\n", id, compute.Describe(to), c.GPU.Index, c.GPU.UUID,
		compute.Describe(had))
	return nil
}

// changeCompute changes the part of a claim, of the ledger or of a command under `tranche run`.
func changeCompute(
	ctx context.Context, ledger *claim.Ledger, runDir, id string, over func(claim.Compute) (claim.Compute, error),
) (c *claim.Claim, had, to claim.Compute, err error) {
	change := func(has claim.Compute) (claim.Compute, error) {
		had = has
		return over(has)
	}
	if c, err = findClaim(ctx, ledger, id); err == nil {
		to, err = ledger.ChangeCompute(ctx, id, change)
		return c, had, to, err
	}
	dir := private.FindRegion(runDir, id)
	if !errors.Is(err, claim.ErrUnknownClaim) || dir == "" {
		return nil, had, to, err
	}
	err = runs.ChangeRecord(ctx, dir, func(run *claim.Claim) (err error) {
		c = run
		to, err = run.ChangeCompute(change)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = (&claim.Claim{Owner: claim.OwnerRun}).CheckGoverned()
	}
	return c, had, to, err
}
