package driver

import (
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
// earlier attempt left behind must not be the last writer when it goes.
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

// shimIO is output that the shim carries by itself. There is nothing here to wait for or to close.
type shimIO cio.Config

func (s shimIO) Config() cio.Config { return cio.Config(s) }
func (shimIO) Cancel()              {}
func (shimIO) Wait()                {}
func (shimIO) Close() error         { return nil }
