//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// checkUsage checks that a job is billed for the time from its claim's making to its release, as the ledger has it, and that
// the agent's page shows it.
func checkUsage(t *testing.T, n *node.Node, agent, job, claimID string) {
	t.Helper()
	var ended *claim.Claim
	must.NoError(t, until(deadline(t), func() (bool, error) {
		claims, err := n.AllClaims(deadline(t))
		for _, c := range claims {
			if c.ID == claimID {
				ended = c
			}
		}
		return ended != nil && !ended.Released.IsZero(), err
	}), must.Sprint("waiting for the claim to be released"))

	out, err := exec.Command(filepath.Join(build, "bin/tranche"), "usage", "--format", "json", "--state-dir", n.StateDir(),
		"--run-dir", n.RunDir(), "--from", ended.Created.UTC().Format(time.DateOnly)).Output()
	must.NoError(t, err, must.Sprint(string(out)))
	var report struct {
		Rows []struct {
			Namespace, Job  string
			Verified        bool
			ReservedSeconds float64 `json:"reserved_seconds"`
			GiBHours        float64 `json:"gib_hours"`
			GPUHours        float64 `json:"gpu_hours"`
		}
	}
	must.NoError(t, json.Unmarshal(out, &report))
	must.Len(t, 1, report.Rows, must.Sprint(string(out)))
	row := report.Rows[0]
	must.Eq(t, "default/"+job, row.Namespace+"/"+row.Job)
	must.True(t, row.Verified)
	seconds := float64(ended.Released.UnixMilli()-ended.Created.UnixMilli()) / 1000
	must.Eq(t, seconds, row.ReservedSeconds)
	must.InDelta(t, seconds*float64(len(ended.Slices))/3600, row.GiBHours, 1e-8)
	must.InDelta(t, seconds*float64(len(ended.Slices))/140/3600, row.GPUHours, 1e-8)
	must.StrContains(t, read(t, agent+"/usage"), `<td class="name">`+job+`</td>`)
}
