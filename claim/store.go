package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim/journal"
)

// unfinishedName is the file that a record is written to before it is renamed. There is one, since it is used under the lock.
//
// It exists between changes to reserve disk space: a record that replaces another exchanges names with it, so that a claim
// can be bound and released on a full disk.
const unfinishedName = ".new"

// changeBytes is how much a record may grow when it is bound: the container's ID alone has up to 1,024 bytes.
const changeBytes = 2 << 10

// fullError is returned if the file system of the ledger has no room for another claim.
type fullError struct{ error }

func (e fullError) Unwrap() error { return e.error }

// writeNew adds the record of a new claim. When it returns, the record survives a power cut; if it fails, the claim does not
// exist. The error is a fullError if there would be no room left for a change of a record.
func (l *Ledger) writeNew(snap *snapshot, r *record) error {
	f, err := l.writeUnfinished(snap, r, true)
	if err != nil {
		return err
	}
	l.noteOpen(r)
	path := l.recordPath(r.ID)
	err = l.sync(f)
	_ = f.Close()
	if err == nil {
		err = unix.Rename(l.unfinishedPath(), path)
	}
	if err == nil {
		err = l.syncDir()
	}
	if err != nil {
		l.note(journal.Undo, r)
		return errors.Join(l.notWritten(r.ID, err), removeFile(path))
	}
	return nil
}

// replace replaces a record atomically. It does not wait for the disk, which syncChanged does after the lock is released: a
// power cut within those milliseconds may destroy the record, so that its task has to be placed again.
func (l *Ledger) replace(snap *snapshot, r *record) error {
	f, err := l.writeUnfinished(snap, r, false)
	if err != nil {
		return err
	}
	l.noteChange(snap.records[r.ID], r)
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

// replaceDurably is replace for a change that has to survive a power cut when it returns. If it fails, the record is the
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

// syncChanged syncs the records that were replaced.
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

// writeUnfinished writes a record to the unfinished file. For a new record, for which that file is renamed, there has to be
// room for another one.
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
	f, err = os.OpenFile(l.unfinishedPath(), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// spareBytes is the disk space that is reserved for changes.
func (snap *snapshot) spareBytes() int64 { return snap.largest + changeBytes }

// wholeBlocks rounds up to 4 KiB, the block size of nearly all file systems.
func wholeBlocks(bytes int64) int64 {
	const block = 4 << 10
	return (bytes + block - 1) / block * block
}

// keepRoom reserves disk space for the next change of a record, if there is any.
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

// allocate allocates disk space for a file, if its file system supports that.
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

// exchange exchanges the names of the unfinished file and a record, or only renames the unfinished file if the file system
// cannot exchange.
func (l *Ledger) exchange(id string) error {
	from, to := l.unfinishedPath(), l.recordPath(id)
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOENT) {
		return os.Rename(from, to)
	}
	return err
}

// notWritten returns the error for a record that could not be written.
func (l *Ledger) notWritten(id string, err error) error {
	return fmt.Errorf("writing claim %s to the ledger, which stays as it was: %w", id, explain(l.claims, markFull(err)))
}

// markFull returns a fullError for errors of a full file system.
func markFull(err error) error {
	if isFull(err) {
		return fullError{err}
	}
	return err
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func (l *Ledger) recordPath(id string) string { return filepath.Join(l.claims, id+".json") }
func (l *Ledger) unfinishedPath() string      { return filepath.Join(l.claims, unfinishedName) }

// removeRecord removes a claim's record, and then the file of its workload, which the next sweep removes if this fails.
func (l *Ledger) removeRecord(id string) error {
	if err := removeFile(l.recordPath(id)); err != nil {
		return fmt.Errorf("removing claim %s from the ledger: %w", id, explain(l.claims, err))
	}
	_ = removeFile(l.workloadPath(id))
	return nil
}

// removeFile removes a file if it exists.
func removeFile(path string) error {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// makeDir creates a directory for its owner alone, and syncs it.
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

// explain adds the remedy to errors that an operator can fix.
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
