// Package runs is where the commands that root has under `tranche run` have their regions in the run directory, and the records of
// those that the governor has to know. Their claims are in no ledger: they end with their commands.
package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/filelock"
)

// Dir is the directory of all commands in the run directory, and Regions that of the regions in a command's directory.
const (
	Dir     = "run"
	Regions = "regions"
)

// RecordFile is the file beside a region by which the governor knows its claim.
const RecordFile = "claim.json"

// RegionDirs returns the directories of the regions of all commands; some may have ended.
func RegionDirs(runDir string) []string {
	dirs, _ := filepath.Glob(filepath.Join(runDir, Dir, "*", Regions, "*")) // the pattern is a good one
	return dirs
}

// WriteRecord writes the claim of a command that has a part of the GPU's time, or whose limit the driver enforces.
func WriteRecord(regionDir string, c *claim.Claim) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(regionDir, RecordFile), append(text, '\n'), 0o600)
}

// lockPatience is how long ChangeRecord waits for others if its context has no deadline.
const lockPatience = 30 * time.Second

// ChangeRecord changes the record of a command's claim. Others who change it at the same time wait.
func ChangeRecord(ctx context.Context, regionDir string, change func(*claim.Claim) error) error {
	unlock, err := filelock.New(filepath.Join(regionDir, RecordFile+".lock"), lockPatience).Acquire(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := ReadRecord(regionDir)
	if err == nil {
		err = change(c)
	}
	if err != nil {
		return err
	}
	return WriteRecord(regionDir, c)
}

// ReadRecord returns that claim. The error is fs.ErrNotExist if the command has none.
func ReadRecord(regionDir string) (*claim.Claim, error) {
	path := filepath.Join(regionDir, RecordFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var c claim.Claim
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &c, nil
}
