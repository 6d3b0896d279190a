package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/cli/report"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// addLedgerFlags is addFlags for commands that need no driver.
func (p *place) addLedgerFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.stateDir, "state-dir", claim.DefaultStateDir, "`directory` of the ledger")
	cmd.Flags().StringVar(&p.runDir, "run-dir", claim.DefaultRunDir, "`directory` of the regions")
}

func (a *app) claimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "claim",
		Short: "List the claims of this node, release one, or change its part of the GPU's time",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(a.claimListCommand(), a.claimReleaseCommand(), a.claimSetCommand())
	return cmd
}

// claimList is what `tranche claim list --json` prints. Programs rely on its names.
type claimList struct {
	Claims   []report.Claim  `json:"claims"`
	Problems []claim.Problem `json:"problems"`
}

func (a *app) claimListCommand() *cobra.Command {
	var p place
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the claims of this node: who holds which slices, up to what limit, in which container",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.listClaims(cmd.Context(), p, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, for programs")
	p.addLedgerFlags(cmd)
	return cmd
}

func (a *app) listClaims(ctx context.Context, p place, asJSON bool) error {
	m, err := a.monitor(p, defaultSliceMemory, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	m.NVML = nil
	r := report.New(m.Read(ctx, nvmlPatience))
	if r.LedgerError != "" {
		return errors.New(r.LedgerError)
	}
	if !asJSON {
		return r.PrintClaims(a.stdout)
	}
	return a.printJSON(claimList{r.Claims, r.Problems})
}

type releaseOptions struct {
	place
	force bool
}

func (a *app) claimReleaseCommand() *cobra.Command {
	var o releaseOptions
	cmd := &cobra.Command{
		Use:   "release ID…",
		Short: "Release claims, so that others may take their slices",
		Long: `Release claims, so that others may take their slices.

A claim that a container has, or will have in a moment, is not released without --force: the memory that the container
holds stays held, and whoever gets the slices next may find less than his limit. Stop the container instead; its claim
goes with it, or, if it is Nomad's, waits for a restart and can be released then.`,
		Args: withUsage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error { return a.releaseClaims(cmd.Context(), o, ids) },
	}
	cmd.Flags().BoolVar(&o.force, "force", false, "release claims even though containers have them")
	o.addLedgerFlags(cmd)
	return cmd
}

// releaseClaims goes on to the next where one is not released.
func (a *app) releaseClaims(ctx context.Context, o releaseOptions, ids []string) error {
	ledger, err := claim.Open(claim.Options{StateDir: o.stateDir, RunDir: o.runDir, Logger: a.logger().Named("ledger")})
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if err := releaseClaim(ctx, ledger, id, o.force, a.stdout); err != nil {
			errs = append(errs, fmt.Errorf("releasing claim %q: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func releaseClaim(ctx context.Context, ledger *claim.Ledger, id string, force bool, out io.Writer) error {
	c, err := findClaim(ctx, ledger, id)
	if err != nil {
		return err
	}
	used := describeUse(c, ledger.State(c, time.Now()))
	switch {
	case force:
		err = ledger.DropInUse(ctx, id)
	case used != "":
		return fmt.Errorf("%s; stop that and its claim is free to go, or release it all the same with --force", used)
	default:
		err = ledger.Drop(ctx, id) // which looks again whether a container has it
	}
	if err != nil {
		return err
	}
	g := report.PhysicalGPU(c)
	if c.Mode.Sliced() {
		printable.Fprintf(out, "Released claim %s: slices %s of GPU %d (%s) are free.\n", id,
			report.DescribeSlices(g.UUID, c.Slices), g.Index, g.UUID)
	} else {
		printable.Fprintf(out, "Released claim %s: what it had of GPU %d (%s) in mode %s is free: %s.\n", id, g.Index, g.UUID, c.Mode,
			strings.Join(c.Slices, ", "))
	}
	fmt.Fprint(out, describeAftermath(c, used != ""))
	return nil
}

func findClaim(ctx context.Context, ledger *claim.Ledger, id string) (*claim.Claim, error) {
	claims, _, err := ledger.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		if c.ID == id {
			return c, nil
		}
	}
	return nil, claim.ErrUnknownClaim
}

// describeUse says who has a claim or is about to; it is empty if nobody is.
func describeUse(c *claim.Claim, state claim.State) string {
	switch {
	case state == claim.StateRunning:
		return fmt.Sprintf("container %s has it and lives (process %d)", report.DescribeContainer(c.Container), c.Container.InitPID)
	case state == claim.StateReserved && c.Owner == claim.OwnerNomad:
		return "Nomad has reserved it for a task that is being started, or whose start failed less than ten minutes ago"
	case state == claim.StateReserved:
		return "a container is being started with it"
	}
	return ""
}

// describeAftermath says what comes of a released claim's container.
func describeAftermath(c *claim.Claim, used bool) string {
	const anew = "If Nomad starts its task again in place, that fails, as the claim is gone: stop the job and run it again.\n"
	switch {
	case used && c.Container != nil:
		text := fmt.Sprintf("Container %s goes on, %s Stop it soon.\n", report.DescribeContainer(c.Container), describeRest(c))
		if c.Owner == claim.OwnerNomad {
			text += anew
		}
		return text
	case used:
		return "The container that it was made for will not start.\n"
	case c.Owner == claim.OwnerNomad:
		return anew
	}
	return ""
}

// describeRest says what a container keeps whose claim was taken from it.
func describeRest(c *claim.Claim) string {
	if !c.Limited() {
		return "with all that it was given of the GPU, and without a claim that would keep it from others."
	}
	return "and what it holds of the GPU is no longer counted by anybody: its programs that use the GPU now keep their limit, " +
		"and new ones get none of it."
}
