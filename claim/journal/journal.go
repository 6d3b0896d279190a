// Package journal is the record of all changes of claims, from which usage is accounted. It appends events and reads them back;
// it does not interpret them, and it never prevents a claim.
//
// The journal is a directory of numbered segments. Writers append under the ledger's lock, readers read what lies between two
// positions without it. A process that dies while it appends leaves a torn line, which readers drop: its change did not happen.
package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// segmentBytes is the size from which a segment is followed by another.
	segmentBytes = 1 << 20
	// mostSegments bounds a journal that nobody collects: the oldest segment goes.
	mostSegments = 64
	// spareBytes is the disk space that is reserved for events, so that some are recorded on a full disk.
	spareBytes = 16 << 10
	// leftBytes is the disk space that the journal leaves to the ledger, whose records come first.
	leftBytes = 256 << 10
)

const (
	segmentSuffix = ".log"
	// gapName is a file that exists while events are missing: since its last modification.
	gapName = "gap"
)

// Position is a place between two events.
type Position struct {
	// Segment is a segment's number; the first is 1.
	Segment int64 `json:"segment"`
	// Offset is in bytes.
	Offset int64 `json:"offset"`
}

// Before reports whether a position is before another.
func (p Position) Before(o Position) bool {
	return p.Segment < o.Segment || p.Segment == o.Segment && p.Offset < o.Offset
}

// Journal is a journal in a directory. It holds no lock, and no open file but between Append and Close.
type Journal struct {
	dir string
	// segmentBytes and mostSegments are the constants; tests make them smaller.
	segmentBytes int64
	mostSegments int
	// last is the segment that is open for appending; nil if none is.
	last *segment
}

// segment is a segment that is open for appending.
type segment struct {
	*os.File
	// bytes is its size, allocatedBytes the disk space that it is known to have.
	bytes, allocatedBytes int64
	// torn is whether a process died while it appended: the torn line has to be ended first.
	torn bool
}

// In returns the journal in a directory, which the first Append creates.
func In(dir string) *Journal {
	return &Journal{dir: dir, segmentBytes: segmentBytes, mostSegments: mostSegments}
}

// Dir returns the journal's directory.
func (j *Journal) Dir() string { return j.dir }

// Append appends an event. The caller holds the ledger's lock, and calls Close before it releases that. If Append fails, Gap
// reports that events are missing, unless the disk has no room even for an empty file.
//
// It does not wait for the disk: Sync does, for those who rely on a position. A power cut before that may lose events.
func (j *Journal) Append(e Event) error {
	err := j.append(e)
	if err != nil {
		j.markGap()
	}
	return err
}

func (j *Journal) append(e Event) error {
	line, err := e.line()
	if err != nil {
		return err
	}
	if err := j.open(); err != nil {
		return err
	}
	if err := j.last.append(line); err != nil {
		return errors.Join(err, j.last.Truncate(j.last.bytes), j.close())
	}
	return nil
}

// Close closes the segment that Append has left open, so that others can append.
func (j *Journal) Close() {
	if j.close() != nil {
		j.markGap()
	}
}

func (j *Journal) close() error {
	if j.last == nil {
		return nil
	}
	err := j.last.Close()
	j.last = nil
	return err
}

func (s *segment) append(line []byte) error {
	if s.torn {
		line = append([]byte(tornMark+"\n"), line...)
	}
	end := s.bytes + int64(len(line))
	if err := s.reserve(end); err != nil {
		return err
	}
	if _, err := s.WriteAt(line, s.bytes); err != nil {
		return err
	}
	s.bytes, s.torn = end, false
	return nil
}

// reserve allocates disk space up to the new end of a segment and beyond, if the file system supports that. It returns an error
// if the segment has no space for the new end, and the disk has none beside what the ledger may need.
func (s *segment) reserve(end int64) error {
	if s.allocatedBytes >= end+spareBytes/2 {
		return nil
	}
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(s.Fd()), &disk); err != nil {
		return err
	}
	if disk.Bavail*uint64(disk.Bsize) < leftBytes {
		if s.allocatedBytes >= end {
			return nil
		}
		return unix.ENOSPC
	}
	if unix.Fallocate(int(s.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, end+spareBytes) == nil {
		s.allocatedBytes = end + spareBytes
	}
	return nil
}

// open opens the last segment, or a new one if that is full.
func (j *Journal) open() error {
	if j.last != nil && j.last.bytes < j.segmentBytes {
		return nil
	}
	if err := j.close(); err != nil {
		return err
	}
	segments, next, err := j.segments()
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Mkdir(j.dir, 0o700)
	}
	if err != nil {
		return err
	}
	if next == 0 {
		s, err := j.openSegment(segments[len(segments)-1])
		if err != nil || s.bytes < j.segmentBytes {
			j.last = s
			return err
		}
		_ = s.Truncate(s.bytes) // which gives the reserved space back
		_ = s.Close()
		next = segments[len(segments)-1] + 1
	}
	for len(segments) >= j.mostSegments {
		if err := os.Remove(j.path(segments[0])); err != nil {
			return err
		}
		segments = segments[1:]
	}
	j.last, err = j.openSegment(next)
	return err
}

func (j *Journal) openSegment(number int64) (*segment, error) {
	f, err := os.OpenFile(j.path(number), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	s := &segment{File: f}
	if err := s.stat(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

func (s *segment) stat() error {
	var file unix.Stat_t
	if err := unix.Fstat(int(s.Fd()), &file); err != nil {
		return err
	}
	s.bytes, s.allocatedBytes = file.Size, file.Blocks*512
	if s.bytes == 0 {
		return nil
	}
	last := make([]byte, 1)
	_, err := s.ReadAt(last, s.bytes-1)
	s.torn = last[0] != '\n'
	return err
}

// End returns the position behind the last event. The caller holds the ledger's lock.
func (j *Journal) End() (Position, error) {
	segments, next, err := j.segments()
	if errors.Is(err, fs.ErrNotExist) {
		return Position{Segment: 1}, nil
	}
	if err != nil {
		return Position{}, fmt.Errorf("read the journal of claims: %w", err)
	}
	if next > 0 {
		return Position{Segment: next}, nil
	}
	last := segments[len(segments)-1]
	info, err := os.Lstat(j.path(last))
	if err != nil {
		return Position{}, fmt.Errorf("read the journal of claims: %w", err)
	}
	return Position{Segment: last, Offset: info.Size()}, nil
}

// Sync writes the segment of a position to the disk, so that a power cut does not leave the journal shorter.
func (j *Journal) Sync(p Position) error {
	f, err := os.Open(j.path(p.Segment))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was appended yet
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err == nil {
		err = syncDir(j.dir)
	}
	if err != nil {
		return fmt.Errorf("write the journal of claims to the disk: %w", err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// RemoveBefore removes the segments whose events were collected: those before the position's.
func (j *Journal) RemoveBefore(p Position) error {
	segments, _, err := j.segments()
	errs := []error{ignoreMissing(err)}
	for _, number := range segments {
		if number < p.Segment {
			errs = append(errs, ignoreMissing(os.Remove(j.path(number))))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove collected segments of the journal of claims: %w", err)
	}
	return nil
}

// Gap says that events are missing.
type Gap struct {
	// Since is when the first one was.
	Since time.Time
	// last changes with each one that is missing.
	last time.Time
}

// markGap records that one more event is missing. If it fails, the error of Append says why.
func (j *Journal) markGap() {
	if f, err := os.OpenFile(j.gapPath(), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600); err == nil {
		_ = f.Chmod(0o600) // changes the time of the last change, but not that of the last modification
		_ = f.Close()
	}
}

// Gap returns what is missing; nil if nothing is.
func (j *Journal) Gap() *Gap {
	var file unix.Stat_t
	if err := unix.Lstat(j.gapPath(), &file); err != nil {
		return nil
	}
	return &Gap{Since: time.Unix(file.Mtim.Unix()), last: time.Unix(file.Ctim.Unix())}
}

// EndGap removes the record of missing events, unless further ones are missing by now. The caller holds the ledger's lock.
func (j *Journal) EndGap(seen *Gap) error {
	if now := j.Gap(); now == nil || *now != *seen {
		return nil
	}
	return ignoreMissing(os.Remove(j.gapPath()))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// segments returns the numbers of the segments in order. next is that of the segment to begin if there is none to continue: what
// is not a regular file is none, and the next one begins behind it.
func (j *Journal) segments() (numbers []int64, next int64, err error) {
	next = 1
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, next, err
	}
	for _, e := range entries { // in the order of their names, and so of their numbers
		name, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		number, err := strconv.ParseInt(name, 10, 64)
		switch {
		case !ok || err != nil || number < 1 || j.path(number) != filepath.Join(j.dir, e.Name()):
		case e.Type().IsRegular():
			numbers, next = append(numbers, number), 0
		default:
			next = number + 1
		}
	}
	return numbers, next, nil
}

func (j *Journal) path(number int64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%010d%s", number, segmentSuffix))
}

func (j *Journal) gapPath() string { return filepath.Join(j.dir, gapName) }
