package claim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/tranche-gpu/tranche/internal/printable"
)

// Workload is what a claim was made for: a task of Nomad's, or a container that was started outside Nomad. Names are as
// Nomad, the engine or the container say them, of any characters: write them by String, or escape them.
//
// It is in a file beside the ledger, <state directory>/workloads/<claim ID>.json, since programs that do not know it refuse
// records with it.
type Workload struct {
	Namespace string `json:"namespace,omitempty"`
	// Job is the job's ID; ParentJob is that of the periodic or parameterized job which it is an instance of.
	Job       string `json:"job,omitempty"`
	ParentJob string `json:"parent_job,omitempty"`
	Group     string `json:"group,omitempty"`
	Task      string `json:"task,omitempty"`
	// Allocation is the allocation's ID.
	Allocation string `json:"allocation,omitempty"`
	// ContainerName is the name that Docker, Podman, nerdctl or a CRI client gave the container.
	ContainerName string `json:"container_name,omitempty"`
	// Verified reports that Nomad said the names above; otherwise the container's environment did, which its image or its job
	// can set to anything. No one verifies ContainerName.
	Verified bool `json:"verified"`

	// AllocDir is the allocation's directory, with which Nomad's claim on the slices goes; empty if it is not known.
	AllocDir string `json:"-"`
	// PeakBytes is the most memory that the claim's last container had counted when it ended; 0 if that is not known.
	PeakBytes uint64 `json:"-"`
}

// IsZero reports whether no name is known.
func (w Workload) IsZero() bool {
	return w == Workload{Verified: w.Verified, AllocDir: w.AllocDir, PeakBytes: w.PeakBytes}
}

// In returns the workload of an allocation that has a directory: as long as that is there, Nomad may restart the task in place.
func (w Workload) In(allocDir string) Workload {
	if filepath.IsAbs(allocDir) && w.Allocation != "" && filepath.Base(allocDir) == w.Allocation {
		w.AllocDir = filepath.Clean(allocDir)
	}
	return w
}

// gone reports whether the workload's allocation is known to be gone: its directory is, and the one that it was in is not.
func (w Workload) gone() bool {
	if w.AllocDir == "" {
		return false
	}
	_, err := os.Lstat(w.AllocDir)
	_, in := os.Lstat(filepath.Dir(w.AllocDir))
	return errors.Is(err, os.ErrNotExist) && in == nil
}

// OfNomad reports whether it is a task of Nomad's.
func (w Workload) OfNomad() bool { return w.Job != "" || w.Allocation != "" || w.Task != "" }

// String describes the workload on one line of printable characters, "-" if nothing is known:
//
//	default/web/gpu/train 3f2a91b0
//	default/web/gpu/train 3f2a91b0 (unverified)
//	container web
func (w Workload) String() string {
	switch {
	case !w.OfNomad() && w.ContainerName == "":
		return "-"
	case !w.OfNomad():
		return "container " + printable.Text(w.ContainerName)
	}
	var parts []string
	for _, part := range []string{w.Namespace, w.Job, w.Group, w.Task} {
		parts = append(parts, printable.Text(cmp.Or(part, "?")))
	}
	text := strings.Join(parts, "/")
	if w.Allocation != "" {
		text += " " + printable.Text(shortID(w.Allocation))
	}
	if !w.Verified {
		text += " (unverified)"
	}
	return text
}

// shortID shortens the ID of an allocation as Nomad's commands do.
func shortID(id string) string { return id[:min(len(id), 8)] }

// maxNameBytes bounds each name. Nomad's are far shorter, and a container's environment may have megabytes.
const maxNameBytes = 256

// bounded returns the workload with names that are valid UTF-8 and not too long.
func (w Workload) bounded() Workload {
	for _, name := range []*string{
		&w.Namespace, &w.Job, &w.ParentJob, &w.Group, &w.Task, &w.Allocation, &w.ContainerName,
	} {
		*name = strings.ToValidUTF8((*name)[:min(len(*name), maxNameBytes)], "\uFFFD")
	}
	return w
}

// after returns what is known after w when before was: names of Nomad's are not replaced by unverified ones.
func (w Workload) after(before Workload) Workload {
	name, peak := cmp.Or(w.ContainerName, before.ContainerName), cmp.Or(w.PeakBytes, before.PeakBytes)
	if before.Verified && !w.Verified {
		w = before
	}
	if w.Allocation == before.Allocation {
		w.AllocDir = cmp.Or(w.AllocDir, before.AllocDir)
	}
	w.ContainerName, w.PeakBytes = name, peak
	return w
}

// workloadsDir is the directory of the workloads in the state directory.
const workloadsDir = "workloads"

// workloadFormat is the version of the files' format.
const workloadFormat = 1

type workloadFile struct {
	Format int `json:"tranche_workload"`
	Workload
	AllocDir  string `json:"alloc_dir,omitempty"`
	PeakBytes uint64 `json:"peak_bytes,omitempty"`
}

// NoteWorkload records what a claim is for. Unverified names do not replace verified ones. If the claim is gone, the error is
// ErrUnknownClaim.
func (l *Ledger) NoteWorkload(ctx context.Context, id string, w Workload) error {
	return l.read(ctx, func(snap *snapshot) error {
		if _, err := snap.get(id); err != nil {
			return err
		}
		return l.noteWorkload(id, w)
	})
}

// noteWorkload writes the file of a workload under the ledger's lock. It does not wait for the disk: after a power cut the
// names may be missing until the next start.
func (l *Ledger) noteWorkload(id string, w Workload) error {
	before, _ := l.Workload(id)
	w = w.bounded().after(before)
	if w == before || w.IsZero() && w.PeakBytes == 0 {
		return nil
	}
	text, err := json.Marshal(workloadFile{workloadFormat, w, w.AllocDir, w.PeakBytes})
	if err != nil {
		return err
	}
	unfinished := filepath.Join(l.workloads, unfinishedName)
	err = os.MkdirAll(l.workloads, 0o700)
	if err == nil {
		err = os.WriteFile(unfinished, append(text, '\n'), 0o600)
	}
	if err == nil {
		err = os.Rename(unfinished, l.workloadPath(id))
	}
	if err != nil {
		return accessError(fmt.Errorf("record the workload of claim %s: %w", id, explain(l.workloads, err)))
	}
	return nil
}

// Workload returns what a claim is for, and whether anything is known. It takes no lock.
func (l *Ledger) Workload(id string) (Workload, bool) {
	var f workloadFile
	text, _, err := readRegular(l.workloadPath(id))
	if err != nil || json.Unmarshal(text, &f) != nil || f.Format != workloadFormat {
		return Workload{}, false // names are for people only: a damaged file is like none
	}
	w := f.bounded()
	w.AllocDir, w.PeakBytes = f.AllocDir, f.PeakBytes
	return w, true
}

// workloadCache is the last result of Workloads, and the stamp of the directory at that time.
type workloadCache struct {
	mu    sync.Mutex
	stamp stamp
	known bool
	all   map[string]Workload
}

// Workloads returns what claims are for, by claim ID, for frequent callers: it reads the files only if one was added, changed
// or removed. It takes no lock. Callers must not modify the map, which they share. It may have claims that are gone.
func (l *Ledger) Workloads() map[string]Workload {
	c := &l.workloadCache
	c.mu.Lock()
	defer c.mu.Unlock()
	now := l.now()
	stamp, err := stampOf(l.workloads)
	if err != nil {
		c.known = false
		return nil
	}
	if c.known && stamp == c.stamp {
		return c.all
	}
	c.all = map[string]Workload{}
	for _, id := range l.workloadIDs() {
		if w, ok := l.Workload(id); ok {
			c.all[id] = w
		}
	}
	c.stamp, c.known = stamp, now.Sub(stamp.changed) > stampSteps
	return c.all
}

// workloadText describes what a claim is for, for logs.
func (l *Ledger) workloadText(id string) string {
	w, _ := l.Workload(id)
	return w.String()
}

func (l *Ledger) workloadIDs() []string {
	entries, _ := os.ReadDir(l.workloads)
	var ids []string
	for _, e := range entries {
		if id, ok := idOfFile(e.Name()); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// sweepWorkloads removes the files of claims that an older program, which does not know them, has removed.
func (l *Ledger) sweepWorkloads(snap *snapshot) error {
	var errs []error
	for _, id := range l.workloadIDs() {
		if _, ok := snap.records[id]; !ok && !snap.unreadable(id) {
			errs = append(errs, removeFile(l.workloadPath(id)))
		}
	}
	return errors.Join(errs...)
}

func (l *Ledger) workloadPath(id string) string { return filepath.Join(l.workloads, id+".json") }
