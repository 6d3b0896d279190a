// Package health is the file by which the device plugin tells others on its node which GPUs are not fit for work. The
// plugin has no way to reach the tasks that have claims on them; the task driver, which has, goes by this file.
package health

import (
	"fmt"
	"path/filepath"
	"time"

	"tranche.dev/tranche/claim/rundir"
)

// FileName is the file's name in the run directory.
const FileName = "health.json"

// format is the version of the file's format.
const format = 1

// Condition is what makes a GPU unfit for work.
type Condition struct {
	// Problem says what it is, and what to do where that is known.
	Problem string `json:"problem"`
	// Since is when the GPU was first seen so.
	Since time.Time `json:"since"`
}

type file struct {
	Format int                  `json:"tranche_health"`
	GPUs   map[string]Condition `json:"gpus"`
}

// Write says which GPUs are not fit for work, by their UUIDs. All others are.
func Write(runDir string, unfit map[string]Condition) error {
	if unfit == nil {
		unfit = map[string]Condition{}
	}
	if err := rundir.Write(runDir, FileName, file{Format: format, GPUs: unfit}); err != nil {
		return fmt.Errorf("writing which GPUs are fit for work to %s: %w", filepath.Join(runDir, FileName), err)
	}
	return nil
}

// Read gives the GPUs that are not fit for work. Where nobody has said so, there are none.
func Read(runDir string) (map[string]Condition, error) {
	var f file
	found, err := rundir.Read(runDir, FileName, &f)
	if found && err == nil && f.Format != format {
		err = fmt.Errorf("its format is %d, and this program knows format %d", f.Format, format)
	}
	if err != nil {
		return nil, fmt.Errorf("reading which GPUs are fit for work from %s: %w; restart Nomad's agent, whose device plugin "+
			"writes it anew, or remove it where there is no such plugin", filepath.Join(runDir, FileName), err)
	}
	return f.GPUs, nil
}
