package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// removeCgroupTree removes a cgroup and those below it, leaves first. Their processes are dead (they lived in the
// sandbox's PID namespace), but the kernel may take a moment to let go of the last of them.
func removeCgroupTree(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list cgroups below %s: %w", top, err)
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := removeCgroup(dirs[i]); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroup removes one cgroup, waiting while it is busy. The kernel has no event for the end of the last exiting
// task of a cgroup v1 hierarchy, so this is one of the few places that ask again, for a minute at most.
func removeCgroup(dir string) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			return fmt.Errorf("remove cgroup %s: %w (processes: %s)", dir, err, strings.Fields(string(procs)))
		}
	}
}
