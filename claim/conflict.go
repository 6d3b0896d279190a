package claim

import (
	"slices"

	"github.com/tranche-gpu/tranche/claim/region"
)

// conflict returns the slices of an older claim that conflict with a new one. Two claims conflict if they share a slice, and
// on one GPU also if one of them has all of it, if their modes differ, or if their MIG instances are in the same place.
func (c *Claim) conflict(older *Claim) []string {
	if shared := c.shared(older); len(shared) > 0 {
		return shared
	}
	mode := c.Mode.orSlice()
	sameDevice := c.GPU.UUID != "" && c.GPU.UUID == older.GPU.UUID
	switch {
	case !sameDevice && c.PhysicalGPU() != older.PhysicalGPU():
		return nil
	case mode != older.Mode.orSlice(), mode == ModeExclusive, mode == ModeMIG && (sameDevice || c.MIG.overlaps(older.MIG)):
		return slices.Clone(older.Slices)
	}
	return nil
}

// shared returns the slices that an older claim and a new one share. Slices that are parts of the memory, but of another size,
// have other numbers for the same memory.
func (c *Claim) shared(older *Claim) []string {
	parts := c.partsMemory() && older.partsMemory()
	if !parts || c.SliceBytes == 0 || older.SliceBytes == 0 || c.SliceBytes == older.SliceBytes {
		return intersect(older.Slices, c.Slices)
	}
	for _, name := range c.Slices {
		if uuid, number, ok := ParseSliceName(name); ok && older.Covers(uuid, number, c.SliceBytes) {
			return slices.Clone(older.Slices)
		}
	}
	return nil
}

// partsMemory reports whether the claim's slices are parts of the GPU's memory.
func (c *Claim) partsMemory() bool { return c.Mode.IsZero() || c.Mode == ModeMPS }

// supersededBy returns the claims that a new one supersedes, or a *HeldError if one of them cannot be superseded.
func (l *Ledger) supersededBy(snap *snapshot, asked *Claim) ([]string, error) {
	var older []string
	for _, r := range snap.matching(func(r *record) bool { return len(asked.conflict(&r.Claim)) > 0 }) {
		if l.used(r) {
			return nil, &HeldError{Claim: r.claim(), Slices: asked.conflict(&r.Claim), Mode: asked.Mode.orSlice()}
		}
		older = append(older, r.ID)
	}
	return older, l.heldByBroken(snap, asked)
}

// heldByBroken returns an error if a claim whose record cannot be read is in use. Its container is unknown, but its region
// shows whether a process uses it.
func (l *Ledger) heldByBroken(snap *snapshot, asked *Claim) error {
	for _, p := range snap.problems {
		shared := asked.sharedWithBroken(p)
		if len(shared) == 0 {
			continue
		}
		if inUse, err := region.InUse(l.regionPath(p.ClaimID)); err == nil && inUse {
			return &HeldError{Claim: &Claim{ID: p.ClaimID, GPU: asked.GPU, Slices: p.MayHold, Mode: asked.Mode}, Slices: shared}
		}
	}
	return nil
}

// sharedWithBroken returns the slices that a new claim may share with one whose record cannot be read. A new claim for a whole
// GPU shares all of them, and a slice with the GPU's own name was the whole GPU.
func (c *Claim) sharedWithBroken(p Problem) []string {
	if shared := intersect(p.MayHold, c.Slices); len(shared) > 0 {
		return shared
	}
	card := c.PhysicalGPU()
	if p.ClaimID == "" || c.Mode != ModeExclusive && !slices.Contains(p.MayHold, card) || !p.mayBeOn(card) {
		return nil
	}
	if len(p.MayHold) == 0 {
		return []string{card}
	}
	return slices.Clone(p.MayHold)
}

func intersect(x, y []string) []string {
	var both []string
	for _, s := range x {
		if slices.Contains(y, s) {
			both = append(both, s)
		}
	}
	return both
}
