package driver

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// streams connect a container's stdout and stderr with the named pipes that Nomad reads, and its stdin with the pipe of
// that name where it has one. Only paths are handed over: the shim opens them, so that logs flow on when this plugin
// dies.
func (s *startup) streams(stdin string, discard bool) cio.Creator {
	config := cio.Config{Stdin: stdin, Stdout: s.cfg.StdoutPath, Stderr: s.cfg.StderrPath, Terminal: s.options.TTY}
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

// noPipe says whether Nomad collects no logs of a stream.
func noPipe(path string) bool { return path == "" || path == os.DevNull }

// keepLogsOpen holds the writing ends of Nomad's pipes until the function it returns is called. Nomad reads them until
// nobody writes any more, and does not begin again for a second attempt at the same start: the shim of a container that an
// earlier attempt left behind must not be the last writer when it goes. Nor must this plugin be, which may die during
// a start: it holds the pipes only while such a shim goes.
//
// A task with a terminal writes nothing to stderr. Nomad's reader is left waiting for a writer there: one that came and
// went would be the end of the task's logs to Nomad.
func keepLogsOpen(cfg *drivers.TaskConfig, tty bool) (release func()) {
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

// logPatience is how long a shim may take to connect a task's logs until it is looked whether they are read at all.
const logPatience = 5 * time.Second

// errLogsUnread is the error of a start whose logs nobody reads.
var errLogsUnread = errors.New("nobody reads the task's logs: Nomad's log process for it has ended; it begins to read " +
	"again when the task is restarted")

// awaitLogReaders watches over the creation of a task, whose shim would wait for a reader of the task's pipes, and not be
// ended by anybody while it does. When the shim should long have been done, pipes that nobody reads are opened here, so
// that the creation comes to its end and can be taken back, and those that are read are kept open: a reader would take
// the end of the only writer for the end of the logs. The function that it returns is to be called after the creation,
// and says whether anybody reads.
func awaitLogReaders(streams cio.Creator) (created func() error) {
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
			err = errLogsUnread
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

// isUnread says whether the path is a pipe that nobody has open for reading.
func isUnread(path string) bool {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.ENXIO)
}

// endStderr lets Nomad see the end of a stderr that nobody ever wrote to.
func endStderr(cfg *drivers.TaskConfig) {
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
