package claim

import (
	"fmt"
	"path/filepath"
)

// WatchDir gives the directory in which a file appears, changes or goes with each change of the ledger, and makes it
// where it is missing. IsRecord tells which of its files are claims.
func (l *Ledger) WatchDir() (string, error) {
	if err := makeDir(l.claims); err != nil {
		return "", fmt.Errorf("making the ledger: %w", explain(l.claims, err))
	}
	return l.claims, nil
}

// IsRecord tells whether a file in the ledger's directory is that of a claim, by its name.
func IsRecord(path string) bool {
	_, ok := idOfFile(filepath.Base(path))
	return ok
}
