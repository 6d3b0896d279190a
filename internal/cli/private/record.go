package private

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/tranche-gpu/tranche/claim"
)

// ClaimFile is the file beside the region of a command under `tranche run` by which the governor knows its claim.
const ClaimFile = "claim.json"

// WriteClaim writes the claim of a command that has a part of the GPU's time.
func WriteClaim(regionDir string, c *claim.Claim) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(regionDir, ClaimFile), append(text, '\n'), 0o600)
}

// ReadClaim reads it. The error is fs.ErrNotExist where the command has no such part.
func ReadClaim(regionDir string) (*claim.Claim, error) {
	path := filepath.Join(regionDir, ClaimFile)
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

// Regions returns the directories of the regions of what root has running under `tranche run`. One that its program has removed
// is called "?".
func Regions(runDir string) []string {
	base, err := realPath(filepath.Join(runDir, runsDir))
	if err != nil {
		return nil // nothing ever ran
	}
	used, err := usedDirs(base)
	if err != nil {
		return nil
	}
	var all []string
	for _, dir := range slices.Sorted(maps.Keys(used)) {
		if !used[dir] {
			continue // is being set up, or has ended
		}
		regions, _ := filepath.Glob(filepath.Join(dir, regionsDir, "*")) // the pattern is a good one
		if len(regions) == 0 {
			regions = []string{filepath.Join(dir, regionsDir, "?")}
		}
		all = append(all, regions...)
	}
	return all
}

// FindRegion returns the directory of the region of a claim of root's under `tranche run`; "" if there is none.
func FindRegion(runDir, id string) string {
	dirs, _ := filepath.Glob(filepath.Join(runDir, runsDir, "*", regionsDir, "*"))
	for _, dir := range dirs {
		if filepath.Base(dir) == id {
			return dir
		}
	}
	return ""
}
