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

// Problem is a file in the ledger that is no readable claim. It is left alone.
type Problem struct {
	// Path is the file.
	Path string `json:"path"`
	// Reason says what is wrong with it, what that means and what to do.
	Reason string `json:"reason"`
	// ClaimID is the claim that the file was, going by its name; empty if it was none.
	ClaimID string `json:"claim_id,omitempty"`
	// MayHold names the slices that can still be read in it.
	MayHold []string `json:"may_hold,omitempty"`
	// GPUUUID is the GPU that it was on, as far as that can still be read.
	GPUUUID string `json:"gpu_uuid,omitempty"`
}

// mayBeOn tells whether the claim may have been on a GPU.
func (p Problem) mayBeOn(gpuUUID string) bool {
	return p.GPUUUID == gpuUUID || slices.ContainsFunc(p.MayHold, func(name string) bool {
		return name == gpuUUID || strings.HasPrefix(name, gpuUUID+"/")
	})
}

// book is what the ledger holds at one moment.
type book struct {
	records  map[string]*record
	problems []Problem
	// largest is the length of the largest record, in bytes.
	largest int64
	// changed are the files of the records that were replaced, by claim, which are to be synced.
	changed map[string]*os.File
}

func newBook() *book { return &book{records: map[string]*record{}, changed: map[string]*os.File{}} }

// maxRecordBytes is far more than any claim takes; a larger file is none.
const maxRecordBytes = 1 << 20

// readBook reads all records, but those that are as they were when they were seen before. A file that cannot be read is a
// problem of that file alone. What there is to be seen next time comes with it.
func readBook(dir string, before seen) (*book, seen, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the ledger: %w", explain(dir, err))
	}
	b, now := newBook(), make(seen, len(entries))
	for _, e := range entries {
		if e.Name() == lockName || e.Name() == unfinishedName || e.Name() == groupName {
			continue
		}
		known, ok := before.find(e.Name(), e)
		if !ok {
			known = b.add(dir, e.Name())
		} else {
			b.records[known.record.ID] = known.record.clone()
		}
		if known.record != nil {
			now[e.Name()] = known
			b.largest = max(b.largest, known.stamp.size)
		}
	}
	return b, now, nil
}

// add reads one file. It returns the record, if that can be known by the file's stamp from now on.
func (b *book) add(dir, name string) (known seenRecord) {
	path := filepath.Join(dir, name)
	id, ok := idOfFile(name)
	if !ok {
		b.problems = append(b.problems, Problem{Path: path,
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
			b.records[id], b.largest = r, max(b.largest, info.Size())
			if stamp, ok := stampOfFile(info); ok && stamp.settledAt(began) {
				known = seenRecord{stamp: stamp, record: r.clone()}
			}
			return known
		}
	}
	held, complete := salvageSlices(text)
	b.problems = append(b.problems, Problem{
		Path: path, ClaimID: id, MayHold: held, GPUUUID: salvageCard(text), Reason: describeBroken(err, held, complete),
	})
	return known
}

// readRegular reads a file that has to be one: no link to elsewhere, no pipe to wait for. What is known of it is from before
// it was read.
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

// get gives the record of a claim, or ErrUnknownClaim.
func (b *book) get(id string) (*record, error) {
	if r, ok := b.records[id]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("claim %s: %w", id, ErrUnknownClaim)
}

// without is what the ledger holds beside a claim.
func (b *book) without(id string) *book {
	others := &book{records: maps.Clone(b.records), problems: b.problems}
	delete(others.records, id)
	return others
}

// sorted gives the records in the order in which a person would list them.
func (b *book) sorted() []*record {
	all := make([]*record, 0, len(b.records))
	for _, r := range b.records {
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
