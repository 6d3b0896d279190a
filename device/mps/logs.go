package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/go-hclog"
)

// maxLogBytes is the maximum size of a file of a daemon's log.
const maxLogBytes = 8 << 20

// output is the file with the daemon's output.
func (d dirs) output() string { return filepath.Join(d.log(), "output.log") }

// openOutput opens that file for a new daemon.
func (d dirs) openOutput() (*os.File, error) {
	file, err := os.OpenFile(d.output(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open the output file of an MPS control daemon: %w", err)
	}
	return file, nil
}

// boundLogs truncates files that have become too large. The daemon keeps them open, and has no command to reopen them.
func (d dirs) boundLogs(logger hclog.Logger) {
	paths, _ := filepath.Glob(filepath.Join(d.log(), "*.log")) // the pattern is a good one
	paths = append(paths, filepath.Join(d.log(), serverName, "server.log"))
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || allocated(info) <= maxLogBytes {
			continue
		}
		if err := os.Truncate(path, 0); err != nil {
			logger.Warn("cannot empty the log of an MPS control daemon", "file", path, "error", err)
			continue
		}
		logger.Info("emptied the log of an MPS control daemon, which was too large", "file", path)
	}
}

// allocated returns the bytes that a file takes on the disk. The size of a file does not show that it was truncated if its
// writer does not append.
func allocated(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}
