package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
)

// Kind is what happens to a claim.
type Kind string

// The kinds of events.
const (
	// Open makes a claim.
	Open Kind = "open"
	// Bind binds a claim to a container.
	Bind Kind = "bind"
	// Release makes a claim dormant: its container has ended.
	Release Kind = "release"
	// Supersede removes a claim whose slices another claim gets.
	Supersede Kind = "supersede"
	// Resize changes what a claim reserves.
	Resize Kind = "resize"
	// Remove removes a claim for any other reason.
	Remove Kind = "remove"
	// Undo removes a claim that was never given to anybody, since making it failed.
	Undo Kind = "undo"
)

// State is whether a claim kept its GPU from others.
type State string

// The states of a claim before an event.
const (
	// Absent is the state before Open.
	Absent State = ""
	// Reserved claims keep their slices from others.
	Reserved State = "reserved"
	// Dormant claims yield to others.
	Dormant State = "dormant"
	// Stale claims have a container of an earlier boot, which no program has noticed yet.
	Stale State = "stale"
)

// Terms are what a claim reserves.
type Terms struct {
	// GPU is the UUID of the physical GPU.
	GPU   string `json:"gpu"`
	Index int    `json:"index"`
	Model string `json:"model"`
	Mode  string `json:"mode"`
	// Slices is the number of slices, or 1 for a claim in a mode without slices.
	Slices int `json:"slices"`
	// SliceBytes is the memory of one slice.
	SliceBytes uint64 `json:"slice_bytes"`
	// Share is the share of the GPU's time in thousandths; 0 if the claim has none.
	Share int `json:"share,omitempty"`
}

// Bytes is the memory that the claim reserves.
func (t Terms) Bytes() uint64 { return uint64(t.Slices) * t.SliceBytes }

// Event is one change of a claim. It is appended before the ledger changes, so the change may have failed: Was and Terms are
// what held until then, and the next event of the claim shows what held after it.
type Event struct {
	Kind Kind `json:"kind"`
	// At is when the change began, in milliseconds since 1970.
	At int64 `json:"at"`
	// Boot identifies the boot in which it did.
	Boot  string `json:"boot"`
	Claim string `json:"claim"`
	// Created is when the claim was made, in milliseconds since 1970. It distinguishes claims that had one ID.
	Created int64  `json:"created"`
	Owner   string `json:"owner"`
	// Was is the claim's state until this event.
	Was State `json:"was"`
	// FreeSince is since when a claim whose container did not come has yielded to others, in milliseconds since 1970; 0 if it
	// has not.
	FreeSince int64 `json:"free_since,omitempty"`
	// Terms are those that held until this event, or that hold from it on if the kind is Open.
	Terms Terms `json:"terms"`
	// By is the claim that supersedes this one.
	By string `json:"by,omitempty"`
	// Workload is what the ledger knows of the job or container that has the claim.
	Workload json.RawMessage `json:"workload,omitempty"`
}

// Milliseconds returns a time as events have it.
func Milliseconds(t time.Time) int64 { return t.UnixMilli() }

// An event is one line: the checksum of the JSON text in eight hex digits, a space and the text.
const checksumDigits = 8

func (e Event) line() ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	line := fmt.Appendf(nil, "%0*x ", checksumDigits, crc32.ChecksumIEEE(text))
	return append(append(line, text...), '\n'), nil
}

// tornMark ends a line whose writer died while it appended it.
const tornMark = " torn"

func torn(line []byte) bool { return bytes.HasSuffix(line, []byte(tornMark)) }

// parseLine reports whether a line is a whole event.
func parseLine(line []byte) (e Event, ok bool) {
	if len(line) <= checksumDigits || line[checksumDigits] != ' ' {
		return e, false
	}
	sum, err := strconv.ParseUint(string(line[:checksumDigits]), 16, 32)
	text := line[checksumDigits+1:]
	if err != nil || crc32.ChecksumIEEE(text) != uint32(sum) {
		return e, false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	return e, d.Decode(&e) == nil && e.Claim != ""
}
