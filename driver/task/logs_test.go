package task

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cio"
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
	release := KeepLogsOpen(cfg, false)
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
	KeepLogsOpen(&drivers.TaskConfig{StdoutPath: filepath.Join(dir, "none"), StderrPath: cfg.StderrPath}, false)()
}

// A task with a terminal has no stderr: its reader waits for a writer until the task ends, and then sees the end.
func TestKeepLogsOpen_Terminal(t *testing.T) {
	dir := t.TempDir()
	cfg := &drivers.TaskConfig{StdoutPath: filepath.Join(dir, "out"), StderrPath: filepath.Join(dir, "err")}
	must.NoError(t, unix.Mkfifo(cfg.StderrPath, 0o600))
	fd, err := unix.Open(cfg.StderrPath, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	must.NoError(t, err)
	defer unix.Close(fd)
	// The kernel tells of a hang-up once a writer has come and gone.
	hungUp := func() bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, 0)
		must.NoError(t, err)
		return fds[0].Revents&unix.POLLHUP != 0
	}
	KeepLogsOpen(cfg, true)()
	must.False(t, hungUp())
	EndStderr(cfg)
	must.True(t, hungUp())
}

func TestStreams(t *testing.T) {
	piped := drivers.TaskConfig{StdoutPath: "/out", StderrPath: "/err"}
	null := drivers.TaskConfig{StdoutPath: os.DevNull, StderrPath: os.DevNull}
	cases := []struct {
		name    string
		cfg     drivers.TaskConfig
		tty     bool
		stdin   string
		discard bool
		want    cio.Config
	}{
		{"pipes", piped, false, "", false, cio.Config{Stdout: "/out", Stderr: "/err"}},
		{"a terminal is one stream", piped, true, "", false, cio.Config{Stdout: "/out", Terminal: true}},
		{"stdin", piped, false, "/in", false, cio.Config{Stdin: "/in", Stdout: "/out", Stderr: "/err"}},
		{"no logs", piped, false, "", true, cio.Config{}},
		{"no logs for this task", null, false, "", false, cio.Config{}},
		{"no logs, but stdin", piped, false, "/in", true,
			cio.Config{Stdin: "/in", Stdout: os.DevNull, Stderr: os.DevNull}},
		{"no logs, but a terminal", piped, true, "", true, cio.Config{Stdout: os.DevNull, Terminal: true}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			streams, err := Streams(&c.cfg, c.stdin, c.tty, c.discard)("id")
			must.NoError(t, err)
			must.Eq(t, c.want, streams.Config())
		})
	}
}
