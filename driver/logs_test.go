package driver

import (
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/task"
)

// A shim waits for the reader of a pipe; StartTask says that there is none.
func TestStart_NobodyReadsTheLogs(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.failing()
	dir := t.TempDir()
	cfg.StdoutPath, cfg.StderrPath = filepath.Join(dir, "stdout"), filepath.Join(dir, "stderr")
	must.NoError(t, unix.Mkfifo(cfg.StdoutPath, 0o600))
	must.NoError(t, unix.Mkfifo(cfg.StderrPath, 0o600))
	_, _, err := d.driver.StartTask(cfg)
	must.ErrorContains(t, err, task.ErrLogsUnread.Error())
	must.True(t, structs.IsRecoverable(err))
	d.noTraces(cfg)
}
