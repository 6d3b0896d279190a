// Package claimtest helps tests that use a ledger.
package claimtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tranche-gpu/tranche/claim/region"
)

// RemoveRegions removes the regions below a run directory when the test ends: as long as one that a container was to
// get is mounted there, the directory of the test cannot be removed.
func RemoveRegions(t testing.TB, runDir string) {
	t.Helper()
	t.Cleanup(func() {
		claims := filepath.Join(runDir, "claims")
		entries, _ := os.ReadDir(claims) // a test may have left something else there, or nothing
		for _, entry := range entries {
			if err := region.Remove(filepath.Join(claims, entry.Name())); err != nil {
				t.Error(err)
			}
		}
	})
}
