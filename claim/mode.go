package claim

import (
	"errors"
	"fmt"
	"time"
)

// Mode is how claims share a GPU. All claims on one GPU have one mode.
type Mode string

// The modes. Records do not have ModeSlice, so that programs without modes read them.
const (
	// ModeSlice gives each claim a part of the memory.
	ModeSlice Mode = "slice"
	// ModeExclusive gives one claim the whole GPU.
	ModeExclusive Mode = "exclusive"
	// ModeTimeslice gives several claims the whole GPU, without limits.
	ModeTimeslice Mode = "timeslice"
	// ModeMPS is ModeSlice with all programs behind one MPS control daemon.
	ModeMPS Mode = "mps"
	// ModeMIG gives each claim a MIG instance of the GPU.
	ModeMIG Mode = "mig"
)

// IsZero reports whether records leave the mode out.
func (m Mode) IsZero() bool { return m == "" || m == ModeSlice }

// Sliced reports whether the mode gives each claim a part of the GPU's memory, in slices and without MIG.
func (m Mode) Sliced() bool { return m == ModeSlice || m == ModeMPS }

// orSlice returns the mode, ModeSlice if it is not set.
func (m Mode) orSlice() Mode {
	if m == "" {
		return ModeSlice
	}
	return m
}

// ParseMode parses the name of a mode; an empty text is ModeSlice.
func ParseMode(text string) (Mode, error) {
	switch m := Mode(text).orSlice(); m {
	case ModeSlice, ModeExclusive, ModeTimeslice, ModeMPS, ModeMIG:
		return m, nil
	}
	return "", fmt.Errorf("%q is no mode of a GPU; there are %s, %s, %s, %s and %s", text,
		ModeSlice, ModeExclusive, ModeTimeslice, ModeMPS, ModeMIG)
}

// MIG is the MIG instance of a claim in ModeMIG.
type MIG struct {
	// GPUUUID and GPUIndex are those of the physical GPU.
	GPUUUID  string `json:"gpu_uuid"`
	GPUIndex int    `json:"gpu_index"`
	// Profile is the name of the instance's profile, such as 3g.40gb.
	Profile string `json:"profile"`
	// GPUInstance and ComputeInstance are the driver's IDs, once the instance is created.
	GPUInstance     int `json:"gpu_instance"`
	ComputeInstance int `json:"compute_instance"`
	// Start and Size are the instance's place among the GPU's memory slots.
	Start int `json:"start"`
	Size  int `json:"size"`
	// Created is when the instance was created. A later instance may have the UUID of an earlier one.
	Created time.Time `json:"created,omitzero"`
}

// overlaps reports whether two instances of one GPU would have a memory slot in common.
func (m *MIG) overlaps(o *MIG) bool { return m.Start < o.Start+o.Size && o.Start < m.Start+m.Size }

// MPS is what a claim in ModeMPS has beside its limit of memory.
type MPS struct {
	// Percentage is the most of the GPU's multiprocessors that each of the claim's processes may have, 1 to 100.
	Percentage int `json:"percentage"`
}

// Limited reports whether the claim has a limit of memory, which the shadow library enforces. If it has none, LimitBytes is
// all memory of its GPU or MIG instance.
func (c *Claim) Limited() bool { return !c.Unlimited }

// PhysicalGPU returns the UUID of the GPU that the claim, or its MIG instance, is on.
func (c *Claim) PhysicalGPU() string {
	if c.MIG != nil {
		return c.MIG.GPUUUID
	}
	return c.GPU.UUID
}

// Making reports whether the claim waits for CompleteMIG.
func (c *Claim) Making() bool { return c.MIG != nil && c.GPU.UUID == "" }

// checkMode checks the fields that depend on the claim's mode.
func (c *Claim) checkMode() error {
	mode, err := ParseMode(string(c.Mode))
	if err != nil {
		return err
	}
	switch whole := mode == ModeExclusive || mode == ModeTimeslice; {
	case (mode == ModeMIG) != (c.MIG != nil):
		return fmt.Errorf("mode mig requires a MIG instance, and other modes exclude one, got mode %s", mode)
	case (mode == ModeMPS) != (c.MPS != nil):
		return fmt.Errorf("mode mps requires a share of MPS, and other modes exclude one, got mode %s", mode)
	case whole && !c.Unlimited:
		return fmt.Errorf("mode %s has no limits", mode)
	case c.Unlimited && !whole && mode != ModeMIG:
		return fmt.Errorf("mode %s has a limit for each claim", mode)
	case c.Compute != nil && mode != ModeSlice && mode != ModeTimeslice:
		return fmt.Errorf("a share of compute requires mode %s or %s, got mode %s", ModeSlice, ModeTimeslice, mode)
	case c.MPS != nil && (c.MPS.Percentage < 1 || c.MPS.Percentage > 100):
		return fmt.Errorf("the share of MPS must be 1 to 100 percent, got %d", c.MPS.Percentage)
	}
	return errors.Join(c.Compute.check(), c.checkEnforcement(), c.MIG.check())
}

func (m *MIG) check() error {
	switch {
	case m == nil:
		return nil
	case m.GPUUUID == "":
		return errors.New("the MIG instance has no GPU")
	case m.Start < 0 || m.Size < 1:
		return fmt.Errorf("the MIG instance has no place: slots from %d, %d of them", m.Start, m.Size)
	}
	return nil
}
