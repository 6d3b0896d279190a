package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// Governor is a governor that runs.
type Governor struct {
	proc.ID
	// Kept is whether a device plugin has started it, and no service manager.
	Kept bool
}

// Find returns the governor of a run directory; nil if none runs. It is the process of which the lock's file has the ID, if that has
// this file open and runs a program of this name as a governor: the ID may be another process's by now.
func Find(runDir, program string) (*Governor, error) {
	lockFile := filepath.Join(runDir, status.Dir, status.LockFile)
	lock, err := os.Stat(lockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the governor: %w", err)
	}
	// The start time is read first: whatever is found out then is of this process, or of none.
	id, err := proc.Find(recorded(lockFile))
	if err != nil || !isGovernor(id.PID, program) || !hasOpen(id.PID, lock) || !id.MayLive() {
		return nil, nil //nolint:nilerr // it has ended
	}
	log, err := os.Stat(filepath.Join(runDir, status.Dir, status.LogFile))
	stderr, stderrErr := os.Stat(fmt.Sprintf("/proc/%d/fd/2", id.PID))
	return &Governor{ID: id, Kept: err == nil && stderrErr == nil && os.SameFile(stderr, log)}, nil
}

// recorded returns the process ID in a lock's file; 0 if it has none.
func recorded(lockFile string) int {
	text, err := os.ReadFile(lockFile)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

func isGovernor(pid int, program string) bool {
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	words := bytes.Split(command, []byte{0})
	path, err := os.Readlink(executable(pid))
	return err == nil && filepath.Base(strings.TrimSuffix(path, " (deleted)")) == filepath.Base(program) &&
		len(words) > 1 && string(words[1]) == "governor"
}

func executable(pid int) string { return fmt.Sprintf("/proc/%d/exe", pid) }

// hasOpen reports whether a process has a file open.
func hasOpen(pid int, file os.FileInfo) bool {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range all {
		if info, err := os.Stat(fd); err == nil && os.SameFile(info, file) {
			return true
		}
	}
	return false
}

// Runs reports whether the governor runs the program that a file has now, which an upgrade has replaced otherwise.
func (g *Governor) Runs(program string) bool {
	own, err := os.Stat(executable(g.PID))
	file, fileErr := os.Stat(program)
	if err != nil || fileErr != nil || os.SameFile(own, file) || own.Size() != file.Size() {
		return err == nil && fileErr == nil && os.SameFile(own, file)
	}
	runs, err := os.ReadFile(executable(g.PID))
	has, fileErr := os.ReadFile(program)
	return err == nil && fileErr == nil && bytes.Equal(runs, has)
}

// endsWithin is how long a governor has to end by itself.
const endsWithin = 5 * time.Second

// Stop ends the governor, whose claims compute as they like until another runs.
func (g *Governor) Stop(ctx context.Context) error {
	if err := g.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	if g.Wait(waiting) == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	if err := g.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return g.Wait(ctx)
}
