package task

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// Streams connects a container's stdout and stderr with the named pipes that Nomad reads, and its stdin with the pipe at
// stdin; empty for none. Only paths are passed: the shim opens them, so that logs continue when this plugin dies. discard
// drops what the container writes.
func Streams(cfg *drivers.TaskConfig, stdin string, tty, discard bool) cio.Creator {
	config := cio.Config{Stdin: stdin, Stdout: cfg.StdoutPath, Stderr: cfg.StderrPath, Terminal: tty}
	if discard || noPipe(config.Stdout) && noPipe(config.Stderr) {
		// Without any path the shim copies nothing; but then it gives neither stdin nor a terminal.
		config.Stdout, config.Stderr = "", ""
		if stdin != "" || config.Terminal {
			config.Stdout, config.Stderr = os.DevNull, os.DevNull
		}
	}
	if config.Terminal {
		// What a terminal shows is one stream.
		config.Stderr = ""
	}
	return func(string) (cio.IO, error) { return shimIO(config), nil }
}

// noPipe reports whether Nomad collects no logs of a stream.
func noPipe(path string) bool { return path == "" || path == os.DevNull }

// KeepLogsOpen holds the writing ends of Nomad's pipes open until the function it returns is called. Nomad reads them until
// the last writer closes them, and does not begin again for a second attempt at the same start: the shim of a container that
// an earlier attempt left must not be the last writer when it ends. Nor must this plugin be, which may die during a start:
// it holds the pipes only while such a shim ends.
//
// A task with a terminal writes nothing to stderr. There Nomad waits for a first writer; one that opens and closes the pipe
// would end the task's logs.
func KeepLogsOpen(cfg *drivers.TaskConfig, tty bool) (release func()) {
	paths := []string{cfg.StdoutPath}
	if !tty {
		paths = append(paths, cfg.StderrPath)
	}
	return keepOpen(paths)
}

func keepOpen(paths []string) (release func()) {
	var held []int
	for _, path := range paths {
		// Without a reader, opening fails, and there is nothing to keep.
		if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			held = append(held, fd)
		}
	}
	return func() {
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}
}

// logPatience is how long a shim may take to connect a task's logs before AwaitLogReaders checks whether they are read.
const logPatience = 5 * time.Second

// ErrLogsUnread is the error of a start whose logs nobody reads.
var ErrLogsUnread = errors.New("nobody reads the task's logs: Nomad's log process for it has ended; it begins to read " +
	"again when the task is restarted")

// AwaitLogReaders keeps the creation of a task from blocking on unread logs: the shim waits for a reader of the task's pipes,
// and cannot be ended meanwhile. After logPatience, pipes without a reader are opened here, so that the creation ends and can
// be undone. Those with a reader are held open, since it would take the end of the only writer for the end of the logs. The
// function that it returns is to be called after the creation, and returns ErrLogsUnread if a pipe had no reader.
func AwaitLogReaders(streams cio.Creator) (created func() error) {
	var paths []string
	if io, err := streams(""); err == nil {
		paths = []string{io.Config().Stdout, io.Config().Stderr}
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			result <- nil
			return
		case <-time.After(logPatience):
		}
		defer keepOpen(paths)()
		var err error
		for _, path := range paths {
			if !isUnread(path) {
				continue
			}
			err = ErrLogsUnread
			if fd, openErr := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); openErr == nil {
				defer unix.Close(fd)
			}
		}
		<-ctx.Done()
		result <- err
	}()
	return func() error {
		cancel()
		return <-result
	}
}

// isUnread reports whether the path is a pipe that nobody has open for reading.
func isUnread(path string) bool {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.ENXIO)
}

// EndStderr ends Nomad's wait for a first writer of the task's stderr.
func EndStderr(cfg *drivers.TaskConfig) {
	if fd, err := unix.Open(cfg.StderrPath, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Close(fd)
	}
}

// shimIO is output that the shim carries by itself. There is nothing here to wait for or to close.
type shimIO cio.Config

func (s shimIO) Config() cio.Config { return cio.Config(s) }
func (shimIO) Cancel()              {}
func (shimIO) Wait()                {}
func (shimIO) Close() error         { return nil }
