package driver

import (
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// logsTo connects a container's stdout and stderr to the named pipes that Nomad reads. Only the paths are handed over:
// the shim opens them, so that logs flow on when this plugin dies.
func logsTo(cfg *drivers.TaskConfig) cio.Creator {
	return func(string) (cio.IO, error) {
		return shimIO{Stdout: cfg.StdoutPath, Stderr: cfg.StderrPath}, nil
	}
}

// shimIO is output that the shim carries by itself. There is nothing here to wait for or to close.
type shimIO cio.Config

func (s shimIO) Config() cio.Config { return cio.Config(s) }
func (shimIO) Cancel()              {}
func (shimIO) Wait()                {}
func (shimIO) Close() error         { return nil }
