// Package health is the file in which the device plugin publishes which GPUs are unhealthy, and which claims
// have uncounted memory. The task driver reads it: a device plugin cannot reach the tasks.
package health

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/rundir"
)

// FileName is the file's name in the run directory.
const FileName = "health.json"

// format is the version of the file's format.
const format = 1

// Condition is what is wrong with a GPU or a claim.
type Condition struct {
	// Problem says what it is, and what to do where that is known.
	Problem string `json:"problem"`
	// Since is when it was first seen.
	Since time.Time `json:"since"`
	// Bytes is how much memory of a claim is not counted.
	Bytes uint64 `json:"bytes,omitempty"`
	// ChargedBytes is how much of that the governor is to take from a limit that the GPU driver enforces.
	ChargedBytes uint64 `json:"charged_bytes,omitempty"`
	// End is whether the tasks with that claim are to be ended for it.
	End bool `json:"end,omitempty"`
	// Container is the container that has the claim, as ContainerKey returns it; empty from an earlier version.
	Container string `json:"container,omitempty"`
}

// Report is what is wrong on a node.
type Report struct {
	// GPUs are the unhealthy ones, by UUID; all others are healthy.
	GPUs map[string]Condition `json:"gpus"`
	// Uncounted are the claims whose containers hold GPU memory that their regions do not count, by ID.
	Uncounted map[string]Condition `json:"uncounted,omitempty"`
	// Events is why the device plugin misses Xid errors; nil if it does not.
	Events *Condition `json:"events,omitempty"`
}

// Of returns the uncounted memory of a claim, if it is that of the present container: a task that was ended for it is not to be
// ended again when it is restarted in place.
func (r *Report) Of(c *claim.Claim) (Condition, bool) {
	condition, found := r.Uncounted[c.ID]
	return condition, found && (condition.Container == "" || condition.Container == c.ContainerKey())
}

type file struct {
	Format int `json:"tranche_health"`
	Report
}

// Write publishes a report in place of the one before.
func Write(runDir string, r Report) error {
	if r.GPUs == nil {
		r.GPUs = map[string]Condition{}
	}
	if err := rundir.Write(runDir, FileName, file{Format: format, Report: r}); err != nil {
		return fmt.Errorf("writing which GPUs are unhealthy to %s: %w", filepath.Join(runDir, FileName), err)
	}
	return nil
}

// Read returns what was published last. Where nothing was, nothing is wrong.
func Read(runDir string) (Report, error) {
	var f file
	found, err := rundir.Read(runDir, FileName, &f)
	if found && err == nil {
		err = rundir.CheckFormat(f.Format, format)
	}
	if err != nil {
		return Report{}, fmt.Errorf("reading which GPUs are unhealthy from %s: %w; restart Nomad's agent, whose device plugin "+
			"writes it anew, or remove it where there is no such plugin", filepath.Join(runDir, FileName), err)
	}
	return f.Report, nil
}
