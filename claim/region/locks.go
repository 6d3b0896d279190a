package region

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A process owns a slot as long as it holds a lock on the slot's first byte through a file description of its own. The
// kernel drops the lock with the last copy of that description, however the process ends, and no process ID is needed
// to know.

// anyLocked reports whether somebody holds a lock on any slot.
func anyLocked(f *os.File) (bool, error) { return locked(f, headerSize, SlotCount*slotSize) }

// slotLocked reports whether somebody owns a slot.
func slotLocked(f *os.File, slot int) (bool, error) { return locked(f, slotOffset(slot), 1) }

func locked(f *os.File, start, length int64) (bool, error) {
	query := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: start, Len: length}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &query); err != nil {
		return false, fmt.Errorf("asking for locks on %s: %w", f.Name(), err)
	}
	return query.Type != unix.F_UNLCK, nil
}

// InUse reports whether a living process uses the region in dir.
func InUse(dir string) (bool, error) {
	f, err := open(dir, UsageFile, false)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return anyLocked(f)
}
