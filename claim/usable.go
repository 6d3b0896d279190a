package claim

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim/region"
)

// CheckUsable returns why no new claim can be made, whatever its request, such as a state directory that is a file, or a full or
// read-only disk; nil if no such reason is known. It creates missing directories. A full disk is not a reason as long as there are
// claims that can be evicted.
func (l *Ledger) CheckUsable(ctx context.Context) error {
	if err := makeDir(l.claims); err != nil {
		return fmt.Errorf("making the ledger: %w", explain(l.claims, err))
	}
	lock, err := os.OpenFile(filepath.Join(l.claims, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("opening the ledger: %w", explain(l.claims, err))
	}
	if err := lock.Close(); err != nil {
		return fmt.Errorf("opening the ledger: %w", err)
	}
	if err := makeDir(l.regions); err != nil {
		return fmt.Errorf("making the directory of regions: %w", explain(l.regions, err))
	}
	free, err := freeBytes(l.regions)
	if err == nil && free < region.CreateBytes {
		err = explain(l.regions, unix.ENOSPC)
	}
	if err != nil {
		return fmt.Errorf("making a region: %w", err)
	}
	return l.checkRoom(ctx)
}

// plentyBytes is more than the size of any record and its change.
const plentyBytes = 2*maxRecordBytes + changeBytes

// checkRoom returns an error if the disk has no room for another record, and no claim can be evicted.
func (l *Ledger) checkRoom(ctx context.Context) error {
	free, err := freeBytes(l.claims)
	if err != nil {
		return fmt.Errorf("looking for room in the ledger: %w", err)
	}
	if free >= plentyBytes {
		return nil
	}
	return l.read(ctx, func(snap *snapshot) error {
		if unfinished, err := os.Lstat(l.unfinishedPath()); err == nil {
			free += wholeBlocks(unfinished.Size())
		}
		if free >= wholeBlocks(max(snap.largest, 1))+wholeBlocks(snap.spareBytes()) {
			return nil
		}
		if l.longestDead(snap) != nil {
			return nil
		}
		return fmt.Errorf("writing a claim to the ledger: %w", explain(l.claims, unix.ENOSPC))
	})
}

// freeBytes returns the free space for root in the file system of a directory.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return 0, explain(dir, unix.EROFS)
	}
	if st.Files > 0 && st.Ffree == 0 {
		return 0, nil
	}
	return int64(min(st.Bfree, math.MaxInt64/uint64(st.Bsize))) * st.Bsize, nil
}
