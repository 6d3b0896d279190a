package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/cli/private"
	"github.com/tranche-gpu/tranche/internal/percent"
	"github.com/tranche-gpu/tranche/runtime/compute"
)

// computeFlags are the flags by which a command states a part of a GPU's time.
type computeFlags struct{ share, max, priority stated }

func (f *computeFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().Var(&f.share, "share", "`percent` of the GPU's time while other claims want it")
	cmd.Flags().Var(&f.max, "max", "the most `percent` of the GPU's time, also while no other claim wants it")
	cmd.Flags().Var(&f.priority, "priority", "`class`: high, normal or best-effort")
}

// request returns what the flags state. Errors name the flag.
func (f computeFlags) request() (r compute.Request, err error) {
	if f.share != "" {
		if r.Share, err = percent.Parse(f.share.String()); err != nil {
			return r, fmt.Errorf("--share %w", err)
		}
	}
	if f.max != "" {
		if r.Max, err = percent.Parse(f.max.String()); err != nil {
			return r, fmt.Errorf("--max %w", err)
		}
	}
	if f.priority != "" {
		if r.Class, err = claim.ParseClass(f.priority.String()); err != nil {
			return r, fmt.Errorf("--priority: %w", err)
		}
	}
	if err := r.Check(); err != nil {
		return r, fmt.Errorf("--share: %w", err)
	}
	return r, nil
}

// runCompute returns the part of its GPU's time that a command under `tranche run` has; nil if none is stated. Without a share
// it is worth its part of the GPU's memory.
func (o runOptions) runCompute(limitBytes, gpuBytes uint64) (*claim.Compute, error) {
	r, err := o.compute.request()
	if err != nil || !r.Stated() {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("--share, --max and --priority need root: they take time from others")
	}
	switch _, err := status.Current(o.runDir, time.Now()); {
	case errors.Is(err, status.ErrNotRunning):
		return nil, fmt.Errorf("--share, --max and --priority: no governor runs on this node (it would write %s); set compute = \"shares\" "+
			"in the device plugin's configuration, or start `tranche governor`",
			filepath.Join(o.runDir, status.Dir, status.FileName))
	case err != nil:
		return nil, err
	}
	worth := max(1, int(limitBytes*claim.WholeCompute/gpuBytes))
	c, err := r.Over(claim.Compute{Share: worth, Max: claim.WholeCompute, Class: claim.ClassNormal})
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// governorPatience is how long a command waits for the governor, which may be starting again.
var governorPatience = status.StaleAfter

// awaitGovernor blocks until the governor expects the programs of a governed command: what they compute before that is in nobody's
// turn.
func awaitGovernor(ctx context.Context, dir *private.Dir, c *claim.Claim) error {
	if !c.Governed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, governorPatience)
	defer cancel()
	if err := dir.AwaitGovernor(ctx, c.ID); err != nil {
		return fmt.Errorf("--share, --max and --priority: the governor has not made the claim's socket within %s: %w; its log says why "+
			"(journalctl -u tranche-governor, or governor/log in --run-dir)", governorPatience, err)
	}
	return nil
}
