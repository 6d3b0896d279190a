// Package layout is the file by which the device plugin tells others on its node how it shares each GPU. It lies in the
// run directory, so that it is gone after a reboot, as long as the plugin has not started again.
package layout

import (
	"fmt"
	"path/filepath"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/rundir"
)

// fileName is the file's name in the run directory.
const fileName = "layout.json"

// format is the version of the file's format.
const format = 1

// GPU is how the device plugin shares a GPU.
type GPU struct {
	Mode claim.Mode `json:"mode"`
	// SliceBytes is the memory of one slice, and Slices how many the GPU has, in the modes that have slices of their own.
	SliceBytes uint64 `json:"slice_bytes,omitempty"`
	Slices     int    `json:"slices,omitempty"`
	// MemoryBytes is all of the GPU's memory, Replicas how many claims may share it in mode timeslice.
	MemoryBytes uint64 `json:"memory_bytes,omitempty"`
	Replicas    int    `json:"replicas,omitempty"`
	// WholeBytes is all memory of the GPU that a MIG instance is of; 0 for a GPU.
	WholeBytes uint64 `json:"whole_bytes,omitempty"`
	// Shares is whether claims on the GPU compute in turns, in proportion to their shares.
	Shares bool `json:"shares,omitempty"`
	// Enforcement is what holds claims on the GPU to their limits; empty if they have none.
	Enforcement claim.Enforcement `json:"enforcement,omitempty"`
	// Bypass is what follows if their programs compute outside of their turns; empty is BypassObserved.
	Bypass Bypass `json:"compute_bypass,omitempty"`
}

// Bypass is what follows if programs of a claim compute outside of its turns.
type Bypass string

// The values of Bypass.
const (
	// BypassObserved is that they are named, which they are in any case.
	BypassObserved Bypass = "observe"
	// BypassCharged is that their claim is charged for the time that they take.
	BypassCharged Bypass = "charge"
	// BypassEnds is that their task is ended.
	BypassEnds Bypass = "end"
)

type file struct {
	Format int            `json:"tranche_layout"`
	GPUs   map[string]GPU `json:"gpus"`
}

// Write says how each GPU is shared, by its UUID. Whoever reads meanwhile sees what was said before or all of this.
func Write(runDir string, gpus map[string]GPU) error {
	if err := rundir.Write(runDir, fileName, file{Format: format, GPUs: named(gpus)}); err != nil {
		return fmt.Errorf("writing how the GPUs are shared to %s: %w", filepath.Join(runDir, fileName), err)
	}
	return nil
}

// named writes every mode out.
func named(gpus map[string]GPU) map[string]GPU {
	all := make(map[string]GPU, len(gpus))
	for uuid, gpu := range gpus {
		if gpu.Mode.IsZero() {
			gpu.Mode = claim.ModeSlice
		}
		all[uuid] = gpu
	}
	return all
}

// Read gives how each GPU is shared. Where nobody has said so, there are none in the answer: all GPUs are then in slices
// of the size that the reader was configured with, and so is a GPU that the answer does not have.
func Read(runDir string) (map[string]GPU, error) {
	var f file
	found, err := rundir.Read(runDir, fileName, &f)
	if found && err == nil {
		err = f.check()
	}
	if err != nil {
		return nil, fmt.Errorf("reading how the device plugin shares the GPUs from %s: %w; restart Nomad's agent, whose device "+
			"plugin writes it anew, or remove it where there is no such plugin", filepath.Join(runDir, fileName), err)
	}
	return f.GPUs, nil
}

// check is strict: a GPU in an unknown mode must not be taken for one in slices.
func (f file) check() error {
	if err := rundir.CheckFormat(f.Format, format); err != nil {
		return err
	}
	for uuid, gpu := range f.GPUs {
		if _, err := claim.ParseMode(string(gpu.Mode)); err != nil {
			return fmt.Errorf("GPU %s: %w", uuid, err)
		}
	}
	return nil
}
