package driver

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
	listedV1  = "devices" // the one in which a container's processes are looked for
	freezerV1 = "freezer"
)

// containerCgroup is the cgroup of a container by its first process, relative to the root of the hierarchies. It is ""
// where the container has none of its own: where it runs in this plugin's, nobody may end all that is in it.
func containerCgroup(pid int) string {
	theirs, ours := cgroupOf(strconv.Itoa(pid)), cgroupOf("self")
	if theirs == "" || theirs == "/" || within(ours, theirs) {
		return ""
	}
	return theirs
}

func cgroupOf(pid string) string {
	v1, unified, err := cgroups.ParseCgroupFileUnified(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return ""
	}
	if cgroups.Mode() == cgroups.Unified {
		return unified
	}
	return v1[listedV1]
}

// within says whether a cgroup is the one at path or below it.
func within(cgroup, path string) bool { return cgroup == path || strings.HasPrefix(cgroup, path+"/") }

// killCgroup ends every process in a container's cgroup and those below it, and waits until they have ended.
func killCgroup(ctx context.Context, path string) error {
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
	dir := filepath.Join(cgroupRoot, listedV1, path)
	if cgroups.Mode() == cgroups.Unified {
		dir = filepath.Join(cgroupRoot, path)
	} else {
		setFrozen(path, "FROZEN")
	}
	victims, err := processesIn(dir, path)
	for _, p := range victims {
		err = errors.Join(err, p.Signal(unix.SIGKILL))
	}
	if cgroups.Mode() == cgroups.Unified {
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
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return ignoreGone(err)
		}
		pids, err := os.ReadFile(file) //nolint:gosec // nobody can make links there: it is the kernel's
		for pid := range bytes.FieldsSeq(pids) {
			number, err := strconv.Atoi(string(pid))
			if err != nil {
				return err
			}
			// One that has left the cgroup by now, or another with its ID, is not meant.
			p, err := proc.Find(number)
			if err == nil && within(cgroupOf(string(pid)), path) && p.Lives() {
				found = append(found, p)
			}
		}
		return ignoreGone(err)
	})
	return found, err
}

// ignoreGone is no error for a cgroup that has been removed.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// setFrozen does not wait until it is so, which a process that hangs in the kernel could put off for ever.
func setFrozen(path, state string) {
	_ = os.WriteFile(filepath.Join(cgroupRoot, freezerV1, path, "freezer.state"), []byte(state), 0o644)
}
