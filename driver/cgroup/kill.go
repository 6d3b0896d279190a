package cgroup

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

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// Hierarchies of cgroup v1. Runtimes put every container into both, by the same path.
const (
	listed = "devices" // the one in which a container's processes are looked for
	// Freezer is the hierarchy that stops processes. Nomad makes a task's cgroup there before the task starts.
	Freezer = "freezer"
)

// OfContainer returns the cgroup of a container by its first process, relative to the root of the hierarchies. It is ""
// where the container has none of its own: where it runs in this plugin's, nobody may end all processes of the cgroup.
func OfContainer(pid int) string {
	theirs, ours := of(strconv.Itoa(pid)), of("self")
	if theirs == "" || theirs == "/" || within(ours, theirs) {
		return ""
	}
	return theirs
}

// HasProcess reports whether a process is in the cgroup at path or one below it.
func HasProcess(path string, pid int) bool { return within(of(strconv.Itoa(pid)), path) }

// of returns the cgroup of a process; "" if there is none.
func of(pid string) string {
	v1, unified, err := cgroups.ParseCgroupFileUnified(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return ""
	}
	if Unified() {
		return unified
	}
	return v1[listed]
}

// within reports whether a cgroup is the one at path or below it.
func within(cgroup, path string) bool { return cgroup == path || strings.HasPrefix(cgroup, path+"/") }

// Kill ends every process in the cgroup at path and those below it, and blocks until they have ended or ctx has. An empty
// path is not a cgroup.
//
// The managers of containerd/cgroups do not fit: to freeze a cgroup they wait without a deadline, which a process that hangs
// in the kernel puts off forever, and they do not wait for the end of processes that are not their children.
func Kill(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	for ctx.Err() == nil {
		ended, err := killRound(ctx, path)
		if err != nil || ended == 0 {
			return err
		}
	}
	return fmt.Errorf("make sure that SIGKILL has ended all processes in cgroup %s: %w", path, ctx.Err())
}

// killRound ends the processes that are there now and returns how many those were. On cgroup v1 they are frozen meanwhile,
// so that none of them makes another while it is being listed; on v2 the kernel ends them all in one step.
func killRound(ctx context.Context, path string) (int, error) {
	dir := filepath.Join(Root, listed, path)
	if Unified() {
		dir = filepath.Join(Root, path)
	} else {
		setFrozen(path, "FROZEN")
	}
	victims, err := processesIn(dir, path)
	for _, p := range victims {
		err = errors.Join(err, p.Signal(unix.SIGKILL))
	}
	if Unified() {
		// Kernels before 5.14 have no such file.
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0o644)
	} else {
		setFrozen(path, "THAWED")
	}
	for _, p := range victims {
		err = errors.Join(err, p.Wait(ctx))
	}
	return len(victims), err
}

// processesIn lists the living processes in the cgroup at path, whose directory is dir, and those below it.
func processesIn(dir, path string) (found []proc.ID, err error) {
	err = walkProcesses(dir, func(pid string) error {
		number, err := strconv.Atoi(pid)
		if err != nil {
			return err
		}
		// One that has left the cgroup by now, or another with its ID, is not meant.
		p, err := proc.Find(number)
		if err == nil && within(of(pid), path) && p.Lives() {
			found = append(found, p)
		}
		return nil
	})
	return found, err
}

// walkProcesses calls visit with each process ID in the cgroup whose directory is dir and those below it. It ends at the
// first error of visit. A cgroup that has been removed has no processes.
func walkProcesses(dir string, visit func(pid string) error) error {
	return filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return ignoreGone(err)
		}
		pids, err := os.ReadFile(file) //nolint:gosec // nobody can make links there: it is the kernel's
		for pid := range bytes.FieldsSeq(pids) {
			if err := visit(string(pid)); err != nil {
				return err
			}
		}
		return ignoreGone(err)
	})
}

// ignoreGone returns no error for a cgroup that has been removed.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// setFrozen does not wait until the processes are in the state.
func setFrozen(path, state string) {
	_ = os.WriteFile(filepath.Join(Root, Freezer, path, "freezer.state"), []byte(state), 0o644)
}
