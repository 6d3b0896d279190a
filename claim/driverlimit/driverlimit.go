// Package driverlimit is the file in which the governor publishes what the GPU driver enforces: the limits of claims, and what
// their containers use of them.
package driverlimit

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/claim/rundir"
)

// FileName is the file's name in the run directory.
const FileName = "driver-limits.json"

// format is the version of the file's format.
const format = 1

// StaleAfter is the age from which a report says nothing about the present.
const StaleAfter = 10 * time.Second

// Report is what the driver enforces on a node.
type Report struct {
	// Written is when it was published. The governor publishes every second while there are such claims.
	Written time.Time `json:"written"`
	// Claims are those whose limit the driver enforces, by ID.
	Claims map[string]Claim `json:"claims"`
}

// Claim is one claim.
type Claim struct {
	// Container is the container that has the claim, as claim.Claim.ContainerKey returns it.
	Container string `json:"container"`
	// LimitBytes is the claim's limit; the driver limits the container's cgroup on the GPU to the sum of its claims there.
	LimitBytes uint64 `json:"limit_bytes"`
	// UsedBytes is what the driver counts for the cgroup, contexts included, and PeakBytes the most that was seen.
	UsedBytes uint64 `json:"used_bytes"`
	PeakBytes uint64 `json:"peak_bytes"`
	// Problem is why the limit does not hold; empty if it does.
	Problem string `json:"problem,omitempty"`
}

type file struct {
	Format int `json:"tranche_driver_limits"`
	Report
}

// Write publishes a report in place of the one before.
func Write(runDir string, r Report) error {
	if err := rundir.Write(runDir, FileName, file{Format: format, Report: r}); err != nil {
		return fmt.Errorf("write what the GPU driver enforces to %s: %w", filepath.Join(runDir, FileName), err)
	}
	return nil
}

// Read returns what was published last, and nil where nothing was.
func Read(runDir string) (*Report, error) {
	var f file
	found, err := rundir.Read(runDir, FileName, &f)
	if found && err == nil {
		err = rundir.CheckFormat(f.Format, format)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("read what the GPU driver enforces from %s: %w; restart the governor, which writes it anew",
			filepath.Join(runDir, FileName), err)
	case !found:
		return nil, nil
	}
	return &f.Report, nil
}
