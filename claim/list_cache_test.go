package claim

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// age makes the ledger's directory as if it had last been changed then.
func age(t *testing.T, l *Ledger, changed time.Time) {
	t.Helper()
	must.NoError(t, os.Chtimes(l.claims, time.Time{}, changed))
}

func recentIDs(t *testing.T, l *Ledger) []string {
	t.Helper()
	claims, problems, err := l.Recent(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, problems)
	ids := []string{}
	for _, c := range claims {
		ids = append(ids, c.ID)
	}
	return ids
}

// What has not changed is not read again, and what has is, by whatever way.
func TestListCache(t *testing.T) {
	l := newLedger(t)
	must.Eq(t, []string{}, recentIDs(t, l))
	first, _ := reserve(t, l, 0, 1)
	must.Eq(t, []string{first.ID}, recentIDs(t, l))

	age(t, l, time.Now().Add(-time.Minute))
	must.Eq(t, []string{first.ID}, recentIDs(t, l))
	path := filepath.Join(l.claims, first.ID+".json")
	content, err := os.ReadFile(path)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("x"), len(content)), 0o600)) // in place, as nothing of ours writes
	must.Eq(t, []string{first.ID}, recentIDs(t, l), must.Sprint("a ledger that did not change was read again"))
	must.NoError(t, os.WriteFile(path, content, 0o600))

	second, _ := reserve(t, l, 2, 3)
	must.Eq(t, []string{first.ID, second.ID}, recentIDs(t, l))
	age(t, l, time.Now().Add(-time.Minute))
	must.NoError(t, l.Bind(t.Context(), second.ID, container("c1", startProcess(t))))
	claims, _, err := l.Recent(t.Context())
	must.NoError(t, err)
	must.NotNil(t, claims[1].Container)
	age(t, l, time.Now().Add(-time.Minute))
	must.NoError(t, l.Drop(t.Context(), first.ID))
	must.Eq(t, []string{second.ID}, recentIDs(t, l))

	age(t, l, time.Now().Add(-time.Minute))
	must.Eq(t, []string{second.ID}, recentIDs(t, l))
	must.NoError(t, os.RemoveAll(l.claims))
	must.Eq(t, []string{}, recentIDs(t, l))
}

// File systems count time in steps: of two changes within one, the second shows as well.
func TestListCache_ChangesWithinOneStep(t *testing.T) {
	l := newLedger(t)
	first, _ := reserve(t, l, 0, 1)
	step := time.Now()
	age(t, l, step)
	must.Eq(t, []string{first.ID}, recentIDs(t, l))
	second, _ := reserve(t, l, 2, 3)
	age(t, l, step)
	must.Eq(t, []string{first.ID, second.ID}, recentIDs(t, l))
}

// What a claim of the list uses is what the ledger says of it by its ID.
func TestUsageOf(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	same := func() {
		t.Helper()
		claims, _, err := l.Recent(t.Context())
		must.NoError(t, err)
		want, wantErr := l.Usage(t.Context(), c.ID)
		have, err := l.UsageOf(claims[0])
		must.Eq(t, want, have)
		must.Eq(t, errors.Is(wantErr, os.ErrNotExist), errors.Is(err, os.ErrNotExist))
		must.Eq(t, wantErr == nil, err == nil)
	}
	same()
	dir := l.regionPath(c.ID)
	scribble(t, dir)
	same()
	must.NoError(t, prepare(l, c.ID, "c1", 1<<30))
	same()
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c1", startProcess(t))))
	same()
	must.NoError(t, os.RemoveAll(dir))
	same()
	other, _ := reserve(t, l, 4, 5)
	must.NoError(t, os.Rename(l.regionPath(other.ID), dir))
	_, err := l.UsageOf(c)
	must.ErrorContains(t, err, other.ID)
}
