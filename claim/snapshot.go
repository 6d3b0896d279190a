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
	"syscall"
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
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the ledger: %w", explain(dir, err))
	}
	snap, now := newSnapshot(), make(recordCache, len(entries))
	for _, e := range entries {
		if e.Name() == lockName || e.Name() == unfinishedName || e.Name() == groupName {
			continue
		}
		known, ok := before.find(e.Name(), e)
		if !ok {
			known = snap.add(dir, e.Name())
		} else {
			snap.records[known.record.ID] = known.record.clone()
		}
		if known.record != nil {
			now[e.Name()] = known
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
	text, info, err := readRegular(path)
	if errors.Is(err, os.ErrNotExist) {
		return known // removed by hand in the meantime
	}
	if err == nil {
		var r *record
		if r, err = decodeRecord(id, text); err == nil {
			snap.records[id], snap.largest = r, max(snap.largest, info.Size())
			if stamp, ok := stampOfFile(info); ok && stamp.settledAt(began) {
				known = cachedRecord{stamp: stamp, record: r.clone()}
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

// readRegular reads a regular file, not a link or a pipe. The returned information is from before it was read.
func readRegular(path string) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecordBytes {
		return nil, nil, fmt.Errorf("it is no file of a claim (%s, %d bytes)", info.Mode(), info.Size())
	}
	text, err := io.ReadAll(f)
	return text, info, err
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
func (snap *snapshot) sorted() []*record {
	all := make([]*record, 0, len(snap.records))
	for _, r := range snap.records {
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y *record) int { return compareClaims(&x.Claim, &y.Claim) })
	return all
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
	changed, edited syscall.Timespec
}

// settled is how long a file must be unchanged before it is cached. The times of file systems have a granularity of up to two
// seconds, and a second change within it would leave the same stamp.
const settled = 3 * time.Second

func stampOfFile(info os.FileInfo) (fileStamp, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return fileStamp{}, false
	}
	return fileStamp{device: st.Dev, inode: st.Ino, size: st.Size, changed: st.Ctim, edited: st.Mtim}, true
}

// find returns the record of a file that has not changed since it was read.
func (s recordCache) find(name string, entry os.DirEntry) (cachedRecord, bool) {
	known, ok := s[name]
	if !ok {
		return cachedRecord{}, false
	}
	info, err := entry.Info()
	if err != nil {
		return cachedRecord{}, false
	}
	stamp, ok := stampOfFile(info)
	return known, ok && stamp == known.stamp
}

// settledAt reports whether the file was last changed long enough before a time.
func (f fileStamp) settledAt(t time.Time) bool { return t.Sub(time.Unix(f.changed.Unix())) > settled }

// clone returns a deep copy of the record.
func (r *record) clone() *record {
	c := *r
	c.Claim = *r.claim()
	c.Supersedes = slices.Clone(r.Supersedes)
	return &c
}
