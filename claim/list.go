package claim

import (
	"context"
	"fmt"
	"path/filepath"
)

// List returns all claims, ordered by GPU and slices, and the files in the ledger's directory that are not records.
func (l *Ledger) List(ctx context.Context) (claims []*Claim, problems []Problem, err error) {
	err = l.read(ctx, func(snap *snapshot) error {
		for _, r := range snap.sorted() {
			claims = append(claims, r.claim())
		}
		problems = snap.problems
		return nil
	})
	return claims, problems, err
}

// Drop removes a claim and its region. If a container that lives or is being started has it, the error is a *HeldError.
func (l *Ledger) Drop(ctx context.Context, id string) error {
	return l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		if l.used(r) {
			return &HeldError{Claim: r.claim(), Slices: r.claim().Slices}
		}
		if err := l.remove(snap, r); err != nil {
			return err
		}
		l.logger.Info("claim dropped", "claim", id)
		return nil
	})
}

// DropInUse removes a claim even if it is in use. Its region stays as long as a process uses it, so that the processes that
// have memory keep their limit; later reservations do not know of that memory.
func (l *Ledger) DropInUse(ctx context.Context, id string) error {
	return l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		if err := l.removeRecord(id); err != nil {
			return accessError(err)
		}
		delete(snap.records, id)
		l.logger.Warn("claim dropped although it may be in use", "claim", id, "owner", r.Owner)
		return l.sweepRegions(snap)
	})
}

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
