package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// unfinishedName is the file that a record is written to before it gets its name. One is enough, since it is only used
// under the lock.
//
// It stays between changes and keeps room on the disk: a record that replaces another trades names with it, so that binding
// and releasing a claim need no further room on a disk that is full by then.
const unfinishedName = ".new"

// changeBytes is how much longer a record may become by being bound: the container's ID alone has up to 1,024 bytes.
const changeBytes = 2 << 10

// fullError says that the file system of the ledger has no room for another claim.
type fullError struct{ error }

func (e fullError) Unwrap() error { return e.error }

// writeNew puts the record of a new claim in the ledger. When it returns, the record survives a power cut; when it fails,
// the claim is not there. It is a fullError where there would be no room left for a change of a record.
func (l *Ledger) writeNew(snap *snapshot, r *record) error {
	f, err := l.writeUnfinished(snap, r, true)
	if err != nil {
		return err
	}
	path := l.recordPath(r.ID)
	err = l.sync(f)
	_ = f.Close()
	if err == nil {
		err = os.Rename(l.unfinishedPath(), path)
	}
	if err == nil {
		err = l.syncDir()
	}
	if err != nil {
		return errors.Join(l.notWritten(r.ID, err), removeFile(path))
	}
	return nil
}

// replace puts a record in place of the one of the same claim, for everybody at once. It does not wait for the disk, which
// syncChanged does as soon as the lock is free again: a power cut within those milliseconds may cost the record, and its task
// has to be placed anew.
func (l *Ledger) replace(snap *snapshot, r *record) error {
	f, err := l.writeUnfinished(snap, r, false)
	if err != nil {
		return err
	}
	if err := l.exchange(r.ID); err != nil {
		_ = f.Close()
		return l.notWritten(r.ID, err)
	}
	if older, ok := snap.changed[r.ID]; ok {
		_ = older.Close()
	}
	snap.changed[r.ID] = f
	l.keepRoom(snap)
	return nil
}

// replaceDurably is replace for a change that has to survive a power cut when it returns; where it fails, the record is the
// older one.
func (l *Ledger) replaceDurably(snap *snapshot, older, r *record) error {
	err := l.replace(snap, r)
	if err != nil {
		return err
	}
	f := snap.changed[r.ID]
	delete(snap.changed, r.ID)
	defer f.Close()
	if err = l.sync(f); err == nil {
		err = l.syncDir()
	}
	if err != nil {
		return errors.Join(l.notWritten(r.ID, err), l.replace(snap, older))
	}
	return nil
}

// syncChanged has the records that were replaced survive a power cut from now on.
func (l *Ledger) syncChanged(snap *snapshot) error {
	var errs []error
	for id, f := range snap.changed {
		if err := l.sync(f); err != nil {
			errs = append(errs, accessError(fmt.Errorf("syncing claim %s, whose change a power cut may undo: %w", id, explain(l.claims, err))))
		}
		_ = f.Close()
	}
	return errors.Join(errs...)
}

// writeUnfinished writes a record to the file that is to get its name. For a new record, which takes that file away, there
// has to be room for another one.
func (l *Ledger) writeUnfinished(snap *snapshot, r *record, isNew bool) (*os.File, error) {
	text, err := encodeRecord(r)
	if err != nil {
		return nil, fmt.Errorf("writing claim %s: %w", r.ID, err)
	}
	f, before, err := l.openUnfinished()
	if err != nil {
		return nil, l.notWritten(r.ID, err)
	}
	snap.largest = max(snap.largest, int64(len(text)))
	if isNew {
		err = allocate(f, wholeBlocks(int64(len(text)))+snap.spareBytes())
	}
	if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if err != nil {
		err = errors.Join(l.notWritten(r.ID, err), f.Truncate(before), f.Close())
		return nil, err
	}
	return f, nil
}

func (l *Ledger) openUnfinished() (f *os.File, bytes int64, err error) {
	f, err = os.OpenFile(l.unfinishedPath(), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// spareBytes is how much of the disk is kept for changes.
func (snap *snapshot) spareBytes() int64 { return snap.largest + changeBytes }

// wholeBlocks is how much of the disk so many bytes take: nearly all file systems give 4 KiB at a time.
func wholeBlocks(bytes int64) int64 {
	const block = 4 << 10
	return (bytes + block - 1) / block * block
}

// keepRoom keeps room for the next change of a record, as far as there is any.
func (l *Ledger) keepRoom(snap *snapshot) {
	f, bytes, err := l.openUnfinished()
	if err != nil {
		return
	}
	defer f.Close()
	if bytes < snap.spareBytes() && allocate(f, snap.spareBytes()) != nil {
		_ = f.Truncate(bytes)
	}
}

// allocate has a file take room on the disk, where its file system can do so in advance.
func allocate(f *os.File, bytes int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, bytes)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return nil
		default:
			return err
		}
	}
}

// exchange gives the unfinished file the name of a record. The file that had it is the unfinished one then, where the file
// system can do that.
func (l *Ledger) exchange(id string) error {
	from, to := l.unfinishedPath(), l.recordPath(id)
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOENT) {
		return os.Rename(from, to)
	}
	return err
}

// notWritten is the error for a record that could not be written.
func (l *Ledger) notWritten(id string, err error) error {
	return fmt.Errorf("writing claim %s to the ledger, which stays as it was: %w", id, explain(l.claims, markFull(err)))
}

// markFull makes an error of a file system that is full a fullError.
func markFull(err error) error {
	if isFull(err) {
		return fullError{err}
	}
	return err
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func (l *Ledger) recordPath(id string) string { return filepath.Join(l.claims, id+".json") }
func (l *Ledger) unfinishedPath() string      { return filepath.Join(l.claims, unfinishedName) }

func (l *Ledger) removeRecord(id string) error {
	if err := removeFile(l.recordPath(id)); err != nil {
		return fmt.Errorf("removing claim %s from the ledger: %w", id, explain(l.claims, err))
	}
	return nil
}

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
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir), (*os.File).Sync)
}

func (l *Ledger) syncDir() error { return syncDir(l.claims, l.sync) }

func syncDir(dir string, sync func(*os.File) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return sync(d)
}

// explain adds what to do about the errors that an operator can do something about.
func explain(dir string, err error) error {
	switch {
	case isFull(err):
		return fmt.Errorf("%w; the file system of %s is full: free some space there (see `df -h %s`) and try again",
			err, dir, dir)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w; the file system of %s has to be writable", err, dir)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; the ledger %s is for root alone: run this as root", err, dir)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w; %s has to be a directory, and all above it: remove what is in the way", err, dir)
	case errors.Is(err, unix.EIO):
		return fmt.Errorf("%w; the disk under %s fails: the kernel's log says more (see `dmesg`)", err, dir)
	}
	return err
}
