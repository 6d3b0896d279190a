package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// IsEmpty reports whether no process is in the cgroup whose directory is dir, nor in one below it. A cgroup that cannot be
// read is not empty.
func IsEmpty(dir string) bool {
	return walkProcesses(dir, func(string) error { return errors.New("a process") }) == nil
}

// Remove removes the cgroup whose directory is dir, and those below it. The kernel refuses to where a process is in one.
func Remove(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			all = append(all, path)
		}
		return ignoreGone(err)
	})
	for _, path := range slices.Backward(all) {
		if rmErr := unix.Rmdir(path); rmErr != nil && !errors.Is(rmErr, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("remove cgroup %s: %w", path, rmErr))
		}
	}
	return err
}
