package claim

import (
	"errors"
	"fmt"
	"time"
)

// Mode is how a GPU is shared among claims. All claims on one GPU are of one mode.
type Mode string

// The modes. Records say nothing of ModeSlice, as those did that were made before there were others.
const (
	// ModeSlice gives each claim a part of the memory, held to by the shadow library.
	ModeSlice Mode = "slice"
	// ModeExclusive gives one claim the whole GPU.
	ModeExclusive Mode = "exclusive"
	// ModeTimeslice lets several claims at the whole GPU, without limits.
	ModeTimeslice Mode = "timeslice"
	// ModeMPS is ModeSlice with all programs behind one MPS control daemon.
	ModeMPS Mode = "mps"
	// ModeMIG gives each claim an instance that MIG has cut out of the GPU.
	ModeMIG Mode = "mig"
)

// IsZero tells whether records leave the mode out.
func (m Mode) IsZero() bool { return m == "" || m == ModeSlice }

// orSlice is the mode, which is ModeSlice where nothing is said.
func (m Mode) orSlice() Mode {
	if m == "" {
		return ModeSlice
	}
	return m
}

// ParseMode reads the name of a mode; an empty text is ModeSlice.
func ParseMode(text string) (Mode, error) {
	switch m := Mode(text).orSlice(); m {
	case ModeSlice, ModeExclusive, ModeTimeslice, ModeMPS, ModeMIG:
		return m, nil
	}
	return "", fmt.Errorf("%q is no mode of a GPU; there are %s, %s, %s, %s and %s", text,
		ModeSlice, ModeExclusive, ModeTimeslice, ModeMPS, ModeMIG)
}

// MIG says which instance of which GPU a claim of ModeMIG is on.
type MIG struct {
	// GPUUUID and GPUIndex are those of the GPU that the instance is cut out of.
	GPUUUID  string `json:"gpu_uuid"`
	GPUIndex int    `json:"gpu_index"`
	// Profile is the driver's name of the instance's size, such as 3g.40gb.
	Profile string `json:"profile"`
	// GPUInstance and ComputeInstance are the driver's IDs; they mean nothing before the instance is made.
	GPUInstance     int `json:"gpu_instance"`
	ComputeInstance int `json:"compute_instance"`
	// Start and Size are the instance's place among the GPU's memory slots.
	Start int `json:"start"`
	Size  int `json:"size"`
	// Created is when the instance was made. An instance made anew may have the UUID of an earlier one.
	Created time.Time `json:"created,omitzero"`
}

// overlaps tells whether two instances of one GPU would lie on the same memory slots.
func (m *MIG) overlaps(o *MIG) bool { return m.Start < o.Start+o.Size && o.Start < m.Start+m.Size }

// MPS is what a claim of ModeMPS has beside its limit of memory.
type MPS struct {
	// Percentage is the most of the GPU's multiprocessors that each of the claim's processes may have, 1 to 100.
	Percentage int `json:"percentage"`
}

// Limited tells whether the claim has a limit of memory of its own, for the shadow library to hold its container to.
// Where it has none, LimitBytes is all memory of its GPU or instance.
func (c *Claim) Limited() bool { return !c.Unlimited }

// PhysicalGPU is the UUID of the GPU that the claim is on, or on an instance of.
func (c *Claim) PhysicalGPU() string {
	if c.MIG != nil {
		return c.MIG.GPUUUID
	}
	return c.GPU.UUID
}

// Making tells whether the claim waits for its MIG instance, which CompleteMIG tells of.
func (c *Claim) Making() bool { return c.MIG != nil && c.GPU.UUID == "" }

// checkMode checks what the claim's mode calls for.
func (c *Claim) checkMode() error {
	mode, err := ParseMode(string(c.Mode))
	if err != nil {
		return err
	}
	switch whole := mode == ModeExclusive || mode == ModeTimeslice; {
	case (mode == ModeMIG) != (c.MIG != nil):
		return fmt.Errorf("mode %s and an instance by MIG: one of them is missing or too many", mode)
	case (mode == ModeMPS) != (c.MPS != nil):
		return fmt.Errorf("mode %s and a share of MPS: one of them is missing or too many", mode)
	case whole && !c.Unlimited:
		return fmt.Errorf("mode %s has no limits", mode)
	case c.Unlimited && !whole && mode != ModeMIG:
		return fmt.Errorf("mode %s has a limit for each claim", mode)
	case c.MPS != nil && (c.MPS.Percentage < 1 || c.MPS.Percentage > 100):
		return fmt.Errorf("a share of %d%% of MPS: it has to be 1 to 100", c.MPS.Percentage)
	}
	return c.MIG.check()
}

func (m *MIG) check() error {
	switch {
	case m == nil:
		return nil
	case m.GPUUUID == "":
		return errors.New("the instance by MIG names no GPU")
	case m.Start < 0 || m.Size < 1:
		return fmt.Errorf("the instance by MIG has no place: slots from %d, %d of them", m.Start, m.Size)
	}
	return nil
}
