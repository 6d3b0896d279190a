package health

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestHealth(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	read, err := Read(dir)
	must.NoError(t, err)
	must.Eq(t, Report{}, read)

	since := time.Unix(1_700_000_000, 0).UTC()
	said := Report{
		GPUs:      map[string]Condition{"GPU-1": {Problem: "Xid 79: it fell off the bus", Since: since}},
		Uncounted: map[string]Condition{"0badcafe": {Problem: "process 4711 (1GiB)", Since: since, Bytes: 1 << 30}},
	}
	must.NoError(t, Write(dir, said))
	read, err = Read(dir)
	must.NoError(t, err)
	must.Eq(t, said, read)
	info, err := os.Stat(filepath.Join(dir, FileName))
	must.NoError(t, err)
	must.Eq(t, 0o644, info.Mode().Perm())

	must.NoError(t, Write(dir, Report{}))
	read, err = Read(dir)
	must.NoError(t, err)
	must.MapEmpty(t, read.GPUs)
	must.MapEmpty(t, read.Uncounted)
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.Len(t, 1, entries)
}

func TestHealth_Damaged(t *testing.T) {
	for name, tc := range map[string]struct{ content, want string }{
		"cut off":         {`{"tranche_health": 1, "gp`, "unexpected end"},
		"of a later form": {`{"tranche_health": 2}`, "its format is 2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(tc.content), 0o644))
			_, err := Read(dir)
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, err, "restart Nomad's agent")
		})
	}
}
