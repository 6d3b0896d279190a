package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/go-hclog"
)

// maxLogBytes is how large a file of a daemon's log may become.
const maxLogBytes = 8 << 20

// output is the file that takes what the daemon prints.
func (d dirs) output() string { return filepath.Join(d.log(), "output.log") }

// openOutput opens the file for a daemon that is to be started.
func (d dirs) openOutput() (*os.File, error) {
	file, err := os.OpenFile(d.output(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open a file for what an MPS control daemon prints: %w", err)
	}
	return file, nil
}

// boundLogs empties the files that have become too large. They are open in the daemon, which cannot be told to open others.
func (d dirs) boundLogs(logger hclog.Logger) {
	entries, _ := os.ReadDir(d.log())
	for _, entry := range entries {
		path := filepath.Join(d.log(), entry.Name())
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || allocated(info) <= maxLogBytes {
			continue
		}
		if err := os.Truncate(path, 0); err != nil {
			logger.Warn("cannot empty the log of an MPS control daemon", "file", path, "error", err)
			continue
		}
		logger.Info("emptied the log of an MPS control daemon, which had become too large", "file", path)
	}
}

// allocated is how much of the disk a file takes. One that was emptied under a writer who does not append keeps its size.
func allocated(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Blocks * 512
	}
	return info.Size()
}
