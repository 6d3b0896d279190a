package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/governor/keeper"
	"github.com/tranche-gpu/tranche/governor/status"
)

var governorChecks = []check{{"governor", "process", governor}}

// governor looks for the governor, which outlives the device plugin that has started it, and so may be of before an upgrade.
func governor(_ context.Context, n *Node) finding {
	looked := filepath.Join(n.Config.RunDir, status.Dir)
	shared, err := layout.Read(n.Config.RunDir)
	if err != nil {
		return warning(looked, err.Error(), "restart Nomad's agent: the device plugin writes the file again")
	}
	wanted := false
	for _, gpu := range shared {
		wanted = wanted || gpu.Shares
	}
	g, err := keeper.Find(n.Config.RunDir, n.Program)
	switch {
	case err != nil:
		return warning(looked, err.Error(), "run tranche doctor as root")
	case g == nil && !wanted:
		return ok(looked, "none runs, and no GPU has compute = \"shares\"")
	case g == nil:
		return fault(looked, "GPUs have compute = \"shares\", and no governor runs: shares do not hold",
			"restart Nomad's agent, or run: systemctl enable --now tranche-governor")
	}
	restart := "systemctl restart tranche-governor"
	if g.Kept {
		restart = "systemctl restart nomad"
	}
	if !g.Runs(n.Program) {
		return warning(looked, fmt.Sprintf("process %d is a governor of another program than %s", g.PID, n.Program),
			"finish the upgrade: "+restart)
	}
	if _, err := status.Current(n.Config.RunDir, time.Now()); err != nil {
		return fault(looked, fmt.Sprintf("process %d does not answer: %v", g.PID, err), restart)
	}
	return ok(looked, "process %d runs", g.PID)
}
