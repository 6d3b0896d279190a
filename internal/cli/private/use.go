package private

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/filelock"
)

// usedDirs returns the private directories under base that are in use: `tranche run` holds their lock, or, for which the
// value is true, a process has them in the environment that it was started with or has a file in them mapped. Neither
// closing descriptors, as Python's subprocess does, nor killing `tranche run` takes a program's libraries away from what
// it starts later.
//
// A process shows neither environment nor mappings for an instant of execve(2), and one with a low process ID may be
// started behind the reader of /proc. So a directory is unused only if two readings say so.
func usedDirs(base string) (map[string]bool, error) {
	dirs, err := filepath.Glob(filepath.Join(base, "*"))
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, dir := range dirs {
		if locked(dir) {
			used[dir] = false
		}
	}
	named := map[string]bool{}
	for range min(2*len(dirs), 2) {
		if err := addNamedByProcesses(base, named); err != nil {
			return nil, err
		}
	}
	for _, dir := range dirs { // an environment may name anything
		if named[dir] {
			used[dir] = true
		}
	}
	return used, nil
}

// locked reports whether `tranche run` holds the lock of a private directory; also where that cannot be found out.
func locked(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return filelock.TryExclusive(f) != nil
}

// addNamedByProcesses adds what may be directories that processes use. A process that cannot be read is another user's, who
// cannot read this user's directories, or has ended.
func addNamedByProcesses(base string, named map[string]bool) error {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	prefix := []byte(base + "/")
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		for _, file := range []string{"environ", "maps"} {
			text, _ := os.ReadFile(filepath.Join("/proc", p.Name(), file))
			addPathsBelow(prefix, text, named)
		}
	}
	return nil
}

// addPathsBelow adds each path of one component below the prefix that the text has.
func addPathsBelow(prefix, text []byte, paths map[string]bool) {
	for {
		_, rest, found := bytes.Cut(text, prefix)
		if !found {
			return
		}
		end := bytes.IndexAny(rest, "/:\x00 \n")
		if end < 0 {
			end = len(rest)
		}
		paths[string(prefix)+string(rest[:end])] = true
		text = rest
	}
}
