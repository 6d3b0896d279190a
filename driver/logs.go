package driver

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// logsTo connects a container's stdout and stderr to the named pipes that Nomad reads. Only the paths are handed over:
// the shim opens them, so that logs flow on when this plugin dies.
func logsTo(cfg *drivers.TaskConfig) cio.Creator {
	return func(string) (cio.IO, error) {
		return shimIO{Stdout: cfg.StdoutPath, Stderr: cfg.StderrPath}, nil
	}
}

// keepLogsOpen holds the writing ends of Nomad's pipes until the function it returns is called. Nomad reads them until
// nobody writes any more, and does not begin again for a second attempt at the same start: the shim of a container that an
// earlier attempt left behind must not be the last writer when it goes. Nor must this plugin be, which may die in the midst
// of a start: it holds the pipes only while such a shim goes.
func keepLogsOpen(cfg *drivers.TaskConfig) (release func()) {
	var held []int
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
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
func awaitLogReaders(cfg *drivers.TaskConfig) (created func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			result <- nil
			return
		case <-time.After(logPatience):
		}
		defer keepLogsOpen(cfg)()
		var err error
		for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
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

// shimIO is output that the shim carries by itself. There is nothing here to wait for or to close.
type shimIO cio.Config

func (s shimIO) Config() cio.Config { return cio.Config(s) }
func (shimIO) Cancel()              {}
func (shimIO) Wait()                {}
func (shimIO) Close() error         { return nil }
