package reconcile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestRemoveStalePipes(t *testing.T) {
	r := New(Config{Logger: hclog.NewNullLogger(), ExecDir: t.TempDir(), Began: time.Now()})
	pipes := func(name string, made time.Time) string {
		dir := filepath.Join(r.ExecDir, name)
		must.NoError(t, os.MkdirAll(dir, 0o700))
		must.NoError(t, unix.Mkfifo(filepath.Join(dir, "exec-stdout"), 0o600))
		must.NoError(t, os.Chtimes(dir, made, made))
		return dir
	}
	stale := pipes("stale", r.Began.Add(-time.Hour))
	read := pipes("read", r.Began.Add(-time.Hour))
	pipes("fresh", time.Now())
	reader, err := unix.Open(filepath.Join(read, "exec-stdout"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	must.NoError(t, err)
	defer unix.Close(reader)
	r.DryRun = true
	must.SliceEmpty(t, r.removeStalePipes())
	r.DryRun = false
	must.Eq(t, []string{"pipes " + stale}, r.removeStalePipes())
	left, err := os.ReadDir(r.ExecDir)
	must.NoError(t, err)
	must.Len(t, 2, left)
}
