package claim

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Problem is a file in the ledger's directory that is not a readable record. It is left alone.
type Problem struct {
	// Path is the file.
	Path string `json:"path"`
	// Reason describes the error, its effect and the remedy.
	Reason string `json:"reason"`
	// ClaimID is the ID in the file's name; empty if that is not the name of a record.
	ClaimID string `json:"claim_id,omitempty"`
	// MayHold are the slices that can still be read in it.
	MayHold []string `json:"may_hold,omitempty"`
	// GPUUUID is the GPU that can still be read in it.
	GPUUUID string `json:"gpu_uuid,omitempty"`
}

// mayBeOn reports whether the claim may have been on a GPU.
func (p Problem) mayBeOn(gpuUUID string) bool {
	return p.GPUUUID == gpuUUID || slices.ContainsFunc(p.MayHold, func(name string) bool {
		return name == gpuUUID || strings.HasPrefix(name, gpuUUID+"/")
	})
}

// snapshot is the content of the ledger at one moment.
type snapshot struct {
	// records are by ID. A record is replaced by another one, never changed, since the cache has it too.
	records  map[string]*record
	problems []Problem
	// largest is the length of the largest record, in bytes.
	largest int64
	// changed are the files of replaced records that have to be synced, by claim ID.
	changed map[string]*os.File
}

func newSnapshot() *snapshot {
	return &snapshot{records: map[string]*record{}, changed: map[string]*os.File{}}
}

// maxRecordBytes is far more than the size of any record; a larger file is not one.
const maxRecordBytes = 1 << 20

// readSnapshot reads all records, except those in the cache whose files have not changed, and returns the cache for the next
// time. A file that cannot be read becomes a Problem.
func readSnapshot(dir string, before recordCache) (*snapshot, recordCache, error) {
	open, err := os.Open(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the ledger: %w", explain(dir, err))
	}
	defer open.Close()
	names, err := open.Readdirnames(-1)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the ledger: %w", explain(dir, err))
	}
	slices.Sort(names)
	snap, now := newSnapshot(), make(recordCache, len(names))
	for _, name := range names {
		if name == lockName || name == unfinishedName || name == groupName {
			continue
		}
		known, ok := before.find(int(open.Fd()), name)
		if !ok {
			known = snap.add(dir, name)
		} else {
			snap.records[known.record.ID] = known.record
		}
		if known.record != nil {
			now[name] = known
			snap.largest = max(snap.largest, known.stamp.size)
		}
	}
	return snap, now, nil
}

// add reads one file. It returns the record for the cache, if the file's stamp will change with the next change.
func (snap *snapshot) add(dir, name string) (known cachedRecord) {
	path := filepath.Join(dir, name)
	id, ok := idOfFile(name)
	if !ok {
		snap.problems = append(snap.problems, Problem{Path: path,
			Reason: "no claim has a file of this name, so something else put it here: move it elsewhere"})
		return known
	}
	began := time.Now()
	text, state, err := readRegular(path)
	if errors.Is(err, os.ErrNotExist) {
		return known // removed by hand in the meantime
	}
	if err == nil {
		var r *record
		if r, err = decodeRecord(id, text); err == nil {
			snap.records[id], snap.largest = r, max(snap.largest, state.Size)
			if stamp, ok := stampOfFile(&state); ok && stamp.settledAt(began) {
				known = cachedRecord{stamp: stamp, record: r}
			}
			return known
		}
	}
	held, complete := salvageSlices(text)
	snap.problems = append(snap.problems, Problem{
		Path: path, ClaimID: id, MayHold: held, GPUUUID: salvageCard(text), Reason: describeBroken(err, held, complete),
	})
	return known
}

// readRegular reads a regular file, not a link or a pipe. The returned state is from before it was read.
func readRegular(path string) (text []byte, state unix.Stat_t, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, state, err
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &state); err != nil {
		return nil, state, err
	}
	if state.Mode&unix.S_IFMT != unix.S_IFREG || state.Size > maxRecordBytes {
		return nil, state, fmt.Errorf("it is no file of a claim (mode %#o, %d bytes)", state.Mode, state.Size)
	}
	text = make([]byte, state.Size)
	n, err := io.ReadFull(f, text)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil // it became shorter in the meantime
	}
	return text[:n], state, err
}

// unreadable reports whether the claim's record cannot be read.
func (snap *snapshot) unreadable(id string) bool {
	return slices.ContainsFunc(snap.problems, func(p Problem) bool { return p.ClaimID == id })
}

// get returns the record of a claim, or ErrUnknownClaim.
func (snap *snapshot) get(id string) (*record, error) {
	if r, ok := snap.records[id]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("claim %s: %w", id, ErrUnknownClaim)
}

// without returns the snapshot without one claim.
func (snap *snapshot) without(id string) *snapshot {
	others := &snapshot{records: maps.Clone(snap.records), problems: snap.problems}
	delete(others.records, id)
	return others
}

// sorted returns the records ordered by GPU, slices and ID.
func (snap *snapshot) sorted() []*record { return snap.matching(func(*record) bool { return true }) }

// matching returns the records for which a function is true, ordered as by sorted.
func (snap *snapshot) matching(want func(*record) bool) []*record {
	var found []*record
	for _, r := range snap.records {
		if want(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(x, y *record) int { return compareClaims(&x.Claim, &y.Claim) })
	return found
}

func compareClaims(x, y *Claim) int {
	if x.GPU.Index != y.GPU.Index {
		return x.GPU.Index - y.GPU.Index
	}
	if c := slices.Compare(x.Slices, y.Slices); c != 0 {
		return c
	}
	return strings.Compare(x.ID, y.ID)
}

// recordCache has the records that were read before, by the names of their files, so that only changed records are read. It
// is used under the ledger's lock.
type recordCache map[string]cachedRecord

type cachedRecord struct {
	stamp  fileStamp
	record *record
}

// fileStamp changes whenever a file's content changes or another file gets its name. Writers cannot prevent that, since the
// kernel sets the time of the last change (ctime).
type fileStamp struct {
	device, inode   uint64
	size            int64
	changed, edited unix.Timespec
}

// settled is how long a file must be unchanged before it is cached. The times of file systems have a granularity of up to two
// seconds, and a second change within it would leave the same stamp.
const settled = 3 * time.Second

func stampOfFile(st *unix.Stat_t) (fileStamp, bool) {
	regular := st.Mode&unix.S_IFMT == unix.S_IFREG
	return fileStamp{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim, edited: st.Mtim}, regular
}

// find returns the record of a file in an open directory that has not changed since it was read.
func (s recordCache) find(dir int, name string) (cachedRecord, bool) {
	known, ok := s[name]
	if !ok {
		return cachedRecord{}, false
	}
	var state unix.Stat_t
	if unix.Fstatat(dir, name, &state, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return cachedRecord{}, false
	}
	stamp, ok := stampOfFile(&state)
	return known, ok && stamp == known.stamp
}

// settledAt reports whether the file was last changed long enough before a time.
func (f fileStamp) settledAt(t time.Time) bool { return t.Sub(time.Unix(f.changed.Unix())) > settled }
