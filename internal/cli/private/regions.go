package private

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/claim/runs"
)

// Regions returns the directories of the regions of what root has running under `tranche run`. One that its program has removed
// is called "?".
func Regions(runDir string) []string {
	base, err := realPath(filepath.Join(runDir, runs.Dir))
	if err != nil {
		return nil // nothing ever ran
	}
	used, err := usedDirs(base)
	if err != nil {
		return nil
	}
	var all []string
	for _, dir := range slices.Sorted(maps.Keys(used)) {
		regions, _ := filepath.Glob(filepath.Join(dir, runs.Regions, "*")) // the pattern is a good one
		switch {
		case !used[dir]: // no process uses it: it is being set up, has ended, or the command has cleared its environment
			regions = slices.DeleteFunc(regions, func(dir string) bool {
				_, err := region.ReadHeader(dir)
				return err != nil
			})
		case len(regions) == 0:
			regions = []string{filepath.Join(dir, runs.Regions, "?")}
		}
		all = append(all, regions...)
	}
	return all
}

// FindRegion returns the directory of the region of a claim of root's under `tranche run`; "" if there is none.
func FindRegion(runDir, id string) string {
	for _, dir := range runs.RegionDirs(runDir) {
		if filepath.Base(dir) == id {
			return dir
		}
	}
	return ""
}
