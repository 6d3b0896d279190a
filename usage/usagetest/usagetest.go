// Package usagetest fills a usage database for tests of what shows it.
package usagetest

import (
	"cmp"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/usage"
)

// Fill returns a database in a state directory with lines and gaps. Lines of one claim ID are of one claim. All that names no
// node is of gpu-1.
func Fill(t testing.TB, stateDir string, lines []usage.Line, gaps []usage.Gap) *usage.Store {
	t.Helper()
	place := usage.Place{StateDir: stateDir, Node: "gpu-1"}
	store, err := usage.Open(t.Context(), place)
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
	numbers := map[string]int{}
	number := func(node string) int {
		node = cmp.Or(node, place.Node)
		if numbers[node] == 0 {
			numbers[node] = len(numbers) + 1
			exec("INSERT INTO node VALUES ($1, $2, 1, 0, 1, $3, '')", numbers[node], node, time.Now().UnixMilli())
		}
		return numbers[node]
	}
	number(place.Node)
	for _, l := range lines {
		node, created := number(l.Node), l.Created.UnixMilli()
		exec(`INSERT INTO claim VALUES ($1, $2, $3, $4, 0, '', 0, 0, 1, 0, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0, 0, 0)
			ON CONFLICT DO NOTHING`, node, l.ClaimID, created, l.Owner, l.Namespace, l.Job, l.ParentJob, l.Group, l.Task, l.Allocation,
			l.ContainerName, l.Verified, l.PeakBytes)
		exec("INSERT INTO gpu VALUES ($1, $2, $3, $4, 0, 0, 0) ON CONFLICT DO NOTHING", node, l.GPU.UUID, l.GPU.Index, l.GPU.Model)
		exec("INSERT INTO hour VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)", l.Hour.UnixMilli()/time.Hour.Milliseconds(), node,
			l.ClaimID, created, l.GPU.UUID, string(l.Mode), l.Bytes, l.Share, l.ReservedMillis, l.ObservedMillis, l.UsedGiBMillis)
	}
	for _, g := range gaps {
		exec("INSERT INTO gap VALUES ($1, $2, $3, $4)", number(g.Node), g.From.UnixMilli(), g.To.UnixMilli(), g.Reason)
	}
	return store
}
