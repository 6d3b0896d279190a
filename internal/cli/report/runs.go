package report

import (
	"os"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/internal/cli/private"
)

// Runs returns what root has running under `tranche run`, which is in no ledger.
func Runs(runDir string) (all []*monitor.Claim) {
	for _, dir := range private.Regions(runDir) {
		c := readRun(runDir, dir)
		if _, err := os.Stat(filepath.Dir(filepath.Dir(dir))); err == nil { // else it ended in the meantime
			all = append(all, c)
		}
	}
	return all
}

func driverUsage(runDir string, c *claim.Claim) (*region.Usage, string) {
	u, err := claim.DriverUsage(runDir, c, time.Now())
	if err != nil {
		return nil, err.Error()
	}
	return &u, ""
}

func readRun(runDir, dir string) *monitor.Claim {
	h, err := region.ReadHeader(dir)
	var u region.Usage
	if err == nil {
		u, err = region.Read(dir)
	}
	c := &monitor.Claim{
		Claim: &claim.Claim{
			ID: filepath.Base(dir), GPU: claim.GPU{UUID: h.GPUUUID, ContextBytes: h.ContextBytes}, Mode: claim.ModeSlice,
			Slices: []string{}, LimitBytes: h.LimitBytes, GPUHostMemoryBytes: h.SpillBytes, Owner: claim.OwnerRun,
		},
		State: claim.StateRunning, GPUIndex: -1, Usage: &u,
	}
	if err != nil {
		c.Usage, c.UsageError = nil, err.Error()
	}
	if info, err := os.Stat(dir); err == nil {
		c.Created = info.ModTime().UTC()
	}
	if recorded, err := runs.ReadRecord(dir); err == nil {
		c.Compute, c.Enforcement, c.Container = recorded.Compute, recorded.Enforcement, recorded.Container
		if recorded.ByDriver() {
			c.Usage, c.UsageError = driverUsage(runDir, recorded)
		}
	}
	return c
}
