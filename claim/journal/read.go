package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Loss describes events that could not be read.
type Loss struct {
	// Damaged is the number of lines with a wrong checksum.
	Damaged int
	// Missing reports that segments were removed before they were read, or something else is in their place.
	Missing bool
}

// Read calls fn for the events between two positions. A torn line at the end of an append is not a loss.
func (j *Journal) Read(from, to Position, fn func(Event) error) (Loss, error) {
	segments, _, err := j.segments()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Loss{}, fmt.Errorf("read the journal of claims: %w", err)
	}
	var loss Loss
	expected := from.Segment
	for _, number := range segments {
		if number < from.Segment || number > to.Segment {
			continue
		}
		loss.Missing = loss.Missing || number > expected
		expected = number + 1
		begin, end := int64(0), int64(-1)
		if number == from.Segment {
			begin = from.Offset
		}
		if number == to.Segment {
			end = to.Offset
		}
		damaged, err := j.readSegment(number, begin, end, fn)
		loss.Damaged += damaged
		if errors.Is(err, fs.ErrNotExist) {
			loss.Missing = true // a writer has just removed it
			continue
		}
		if err != nil {
			return loss, fmt.Errorf("read the journal of claims: %w", err)
		}
	}
	loss.Missing = loss.Missing || expected <= to.Segment && (Position{Segment: expected}).Before(to)
	return loss, nil
}

// mostLineBytes is more than an event has. Of what is longer the begin is dropped, and the rest is damaged.
const mostLineBytes = 64 << 10

// readSegment reads the lines between two offsets; a negative end is that of the file.
func (j *Journal) readSegment(number, begin, end int64, fn func(Event) error) (damaged int, err error) {
	f, err := os.Open(j.path(number))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if end < 0 {
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		end = info.Size()
	}
	lines := bufio.NewReaderSize(io.NewSectionReader(f, begin, max(end-begin, 0)), mostLineBytes)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) {
			return damaged, nil // what is left is torn
		}
		if err != nil {
			return damaged, err
		}
		line = bytes.TrimSuffix(line, []byte{'\n'})
		e, ok := parseLine(line)
		switch {
		case ok:
			if err := fn(e); err != nil {
				return damaged, err
			}
		case !torn(line):
			damaged++
		}
	}
}
