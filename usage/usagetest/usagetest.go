// Package usagetest fills a usage database for tests of what shows it.
package usagetest

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/usage"
)

// Fill returns a database in a state directory with lines and gaps. Lines of one claim ID are of one claim.
func Fill(t testing.TB, stateDir string, lines []usage.Line, gaps []usage.Gap) *usage.Store {
	t.Helper()
	store, err := usage.Open(t.Context(), stateDir)
	must.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	db, err := sql.Open("sqlite", filepath.Join(stateDir, "usage.db"))
	must.NoError(t, err)
	defer db.Close()
	exec := func(statement string, args ...any) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), statement, args...)
		must.NoError(t, err)
	}
	keys := map[string]int{}
	for _, l := range lines {
		if _, known := keys[l.ClaimID]; !known {
			keys[l.ClaimID] = len(keys) + 1
			exec("INSERT INTO claim VALUES (?, ?, ?, ?, 0, '', 0, 0, 1, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0)", keys[l.ClaimID], l.ClaimID,
				l.Created.UnixMilli(), l.Owner, l.Namespace, l.Job, l.ParentJob, l.Group, l.Task, l.Allocation, l.ContainerName,
				l.Verified, l.PeakBytes)
		}
		exec("INSERT OR IGNORE INTO gpu VALUES (?, ?, ?, 0, 0)", l.GPU.UUID, l.GPU.Index, l.GPU.Model)
		exec("INSERT INTO hour VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", l.Hour.UnixMilli()/time.Hour.Milliseconds(), keys[l.ClaimID], l.GPU.UUID,
			string(l.Mode), l.Bytes, l.Share, l.ReservedMillis, l.ObservedMillis, l.UsedGiBMillis)
	}
	for _, g := range gaps {
		exec("INSERT INTO gap VALUES (?, ?, ?)", g.From.UnixMilli(), g.To.UnixMilli(), g.Reason)
	}
	return store
}
