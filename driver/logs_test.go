package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// TestKeepLogsOpen checks that the reader of a task's pipes does not see their end while a start is under way, although
// the only other writer goes, and that it does afterwards.
func TestKeepLogsOpen(t *testing.T) {
	dir := t.TempDir()
	cfg := &drivers.TaskConfig{StdoutPath: filepath.Join(dir, "out"), StderrPath: filepath.Join(dir, "err")}
	var readers []int
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		must.NoError(t, unix.Mkfifo(path, 0o600))
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		must.NoError(t, err)
		defer unix.Close(fd)
		readers = append(readers, fd)
	}
	release := keepLogsOpen(cfg)
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		writer, err := os.OpenFile(path, os.O_WRONLY, 0)
		must.NoError(t, err)
		must.NoError(t, writer.Close())
	}
	for _, fd := range readers {
		_, err := unix.Read(fd, make([]byte, 1))
		must.ErrorIs(t, err, unix.EAGAIN)
	}
	release()
	for _, fd := range readers {
		n, err := unix.Read(fd, make([]byte, 1))
		must.NoError(t, err)
		must.Zero(t, n)
	}

	// Pipes that nobody reads are no reason to wait or to fail.
	keepLogsOpen(&drivers.TaskConfig{StdoutPath: filepath.Join(dir, "none"), StderrPath: cfg.StderrPath})()
}

// A shim waits for the reader of a pipe; StartTask says that there is none.
func TestStart_NobodyReadsTheLogs(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.failing()
	dir := t.TempDir()
	cfg.StdoutPath, cfg.StderrPath = filepath.Join(dir, "stdout"), filepath.Join(dir, "stderr")
	must.NoError(t, unix.Mkfifo(cfg.StdoutPath, 0o600))
	must.NoError(t, unix.Mkfifo(cfg.StderrPath, 0o600))
	_, _, err := d.driver.StartTask(cfg)
	must.ErrorContains(t, err, errLogsUnread.Error())
	must.True(t, structs.IsRecoverable(err))
	d.noTraces(cfg)
}
