package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// unfinishedName is the file that a record is written to before it gets its name. One is enough, since it is only used
// under the lock, and one that a killed process left is overwritten by the next.
const unfinishedName = ".new"

// writeRecord puts a record in the ledger, in place of an older one of the same claim. When it returns, the record
// survives a power cut; when it fails, the ledger is as it was.
func writeRecord(dir string, r *record) error {
	text, err := encodeRecord(r)
	if err != nil {
		return fmt.Errorf("writing claim %s: %w", r.ID, err)
	}
	unfinished := filepath.Join(dir, unfinishedName)
	err = writeDurably(unfinished, text)
	if err == nil {
		err = os.Rename(unfinished, filepath.Join(dir, r.ID+".json"))
	}
	if err != nil {
		_ = os.Remove(unfinished)
		return fmt.Errorf("writing claim %s to the ledger, which stays as it was: %w", r.ID, explain(dir, err))
	}
	return syncDir(dir)
}

func writeDurably(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func removeRecord(dir, id string) error { return removeFile(filepath.Join(dir, id+".json")) }

// removeFile removes a file if it is there.
func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// makeDir makes a directory, for its owner alone, so that it survives a power cut.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}

// explain adds what to do about the errors that an operator can do something about.
func explain(dir string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w; the file system of %s is full: free some space there (see `df -h %s`) and try again",
			err, dir, dir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w; the file system of %s has to be writable", err, dir)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; the ledger %s is for root alone: run this as root", err, dir)
	}
	return err
}
