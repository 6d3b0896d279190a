package region

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	// tagLocks is where the locks begin by which exported descriptors are known: intercept/region/tags.h.
	tagLocks = 1 << 62

	// tagLocksBytes is the most that is read of the kernel's list of locks, to which any program can add.
	tagLocksBytes = 4 << 20
)

// tags are the tags of all open descriptors that memory was exported as, of any claim. They are read when first needed.
type tags struct {
	read  bool
	known map[uint64]bool // nil if that cannot be found out
}

// keep reports whether a slot is a share that an open descriptor keeps, or may do so.
func (t *tags) keep(m mapping, slot int) bool {
	at := slotOffset(slot)
	if m.load64(at+offSlotLife)&lifeKindMask != kindShare || m.load64(at+offSlotTarget) == 0 ||
		committed(m.load64(heldOffset(slot, ledgerGPU)+offHeldCommitted)).pages() == 0 {
		return false
	}
	if !t.read {
		t.read, t.known = true, openTags()
	}
	return t.known == nil || t.known[m.load64(at+offSlotTag)]
}

func openTags() map[uint64]bool {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer f.Close()
	known := make(map[uint64]bool)
	bounded := io.LimitedReader{R: f, N: tagLocksBytes}
	lines := bufio.NewScanner(&bounded)
	for lines.Scan() {
		// 1: OFDLCK ADVISORY  READ -1 00:06:3 4611686018427387905 4611686018427387905
		fields := strings.Fields(lines.Text())
		if len(fields) != 8 || fields[1] != "OFDLCK" {
			continue
		}
		if at, err := strconv.ParseUint(fields[6], 10, 64); err == nil && at > tagLocks {
			known[at-tagLocks] = true
		}
	}
	if lines.Err() != nil || bounded.N == 0 {
		return nil
	}
	return known
}
