package claim

import (
	"fmt"
	"path/filepath"
)

// WatchDir returns the directory in which a file is added, changed or removed with each change of the ledger. It creates the
// directory if it is missing. IsRecord reports which of its files are claims.
func (l *Ledger) WatchDir() (string, error) {
	if err := makeDir(l.claims); err != nil {
		return "", fmt.Errorf("making the ledger: %w", explain(l.claims, err))
	}
	return l.claims, nil
}

// IsRecord reports whether a file name in the ledger's directory is that of a claim.
func IsRecord(path string) bool {
	_, ok := idOfFile(filepath.Base(path))
	return ok
}
