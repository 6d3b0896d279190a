package region

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Create makes the region in dir, which must not exist; its parent is made where missing, for the owner alone. The
// region appears complete or not at all.
//
// The parent keeps others on the host out. The directory and the files themselves are open, since they are mounted into
// containers whose users may be anybody; there `limit` cannot be written, because it is mounted read-only.
func Create(dir string, h Header) error {
	if err := h.check(); err != nil {
		return fmt.Errorf("making the region %s: %w", dir, err)
	}
	parent, name := filepath.Split(filepath.Clean(dir))
	unfinished := filepath.Join(parent, unfinishedPrefix+name)
	err := os.Mkdir(unfinished, 0o755)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = cmp.Or(os.MkdirAll(parent, 0o700), os.Mkdir(unfinished, 0o755))
	case errors.Is(err, fs.ErrExist): // somebody has died
		err = cmp.Or(os.RemoveAll(unfinished), os.Mkdir(unfinished, 0o755))
	}
	if err == nil {
		err = fill(unfinished, h)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("making the region %s: %w", dir, explainFull(parent, err)),
			os.RemoveAll(unfinished))
	}
	if err := os.Rename(unfinished, dir); err != nil {
		return errors.Join(fmt.Errorf("making the region: %w", err), os.RemoveAll(unfinished))
	}
	return nil
}

// unfinishedPrefix marks a directory that Create has not finished.
const unfinishedPrefix = ".new-"

// fill makes the files of a region in its directory.
func fill(dir string, h Header) error {
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask says
		return err
	}
	if err := writeFile(filepath.Join(dir, LimitFile), encodeLimit(h), LimitSize, LimitSize, 0o644); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, UsageFile), encodeUsage(h.ClaimID), UsageSize, allocatedSize, 0o666)
}

// allocatedSize is how much of the usage file is allocated from the start: the totals and the slots that are used first.
// Few claims ever need more, and all of it for each claim would fill /run.
const allocatedSize = 2 * 4096

// CreateBytes is how much room Create needs.
const CreateBytes = LimitSize + allocatedSize

// writeFile makes a file that begins with start and is size bytes long. A page that is not allocated and that the file
// system has no room for when it is needed is a SIGBUS in somebody's program, which then gets no more GPU memory.
func writeFile(path string, start []byte, size, allocated int64, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if allocated > int64(len(start)) {
		if err = allocate(f, allocated); err != nil {
			err = fmt.Errorf("allocating %s: %w", path, err)
		}
	}
	if err == nil {
		_, err = f.Write(start)
	}
	if err == nil && size > allocated {
		err = f.Truncate(size)
	}
	if err == nil {
		err = f.Chmod(mode) // whatever the umask says
	}
	return errors.Join(err, f.Close())
}

// fallocate is replaced by a test.
var fallocate = unix.Fallocate

// allocate has a file system allocate the first bytes of a file. In Linux 6.1, a tmpfs gives up for any signal, of which
// Go's runtime sends many.
func allocate(f *os.File, bytes int64) error {
	for {
		if err := fallocate(int(f.Fd()), 0, 0, bytes); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// explainFull adds what to do when the file system is full.
func explainFull(dir string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w; the file system of %s is full: free some space there (see `df -h %s`)", err, dir, dir)
	}
	return err
}
