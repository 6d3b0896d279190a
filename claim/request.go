package claim

import (
	"errors"
	"fmt"
	"slices"
)

// Request is a request for Reserve.
type Request struct {
	// GPU is the GPU or MIG instance. Its UUID is empty if the MIG instance is not created yet.
	GPU    GPU
	Slices []string
	// SliceBytes is the memory of one slice; 0 means an equal part of the limit for each slice.
	SliceBytes uint64
	// LimitBytes is the limit; for a claim without one, all memory of the GPU or the MIG instance.
	LimitBytes uint64
	Owner      string
	// Mode is the mode; empty means ModeSlice.
	Mode Mode
	// Unlimited requests a claim in ModeMIG without a limit. Claims in ModeExclusive and ModeTimeslice never have one.
	Unlimited bool
	// Enforcement is what is to hold the programs to the limit; empty means EnforcementLibrary.
	Enforcement Enforcement
	// MIG and MPS are the fields of those modes.
	MIG *MIG
	MPS *MPS
	// Compute makes the claim governed.
	Compute *Compute
}

// claim returns the requested claim, without an ID.
func (r Request) claim() Claim {
	mode := r.Mode.orSlice()
	c := Claim{
		GPU: r.GPU, Slices: slices.Clone(r.Slices), SliceBytes: r.SliceBytes, LimitBytes: r.LimitBytes, Owner: r.Owner,
		Mode: mode, Unlimited: r.Unlimited || mode == ModeExclusive || mode == ModeTimeslice,
		Enforcement: r.Enforcement,
	}
	if r.MIG != nil {
		mig := *r.MIG
		c.MIG = &mig
	}
	if r.MPS != nil {
		mps := *r.MPS
		c.MPS = &mps
	}
	if r.Compute != nil {
		compute := *r.Compute
		c.Compute = &compute
	}
	return c
}

func (r Request) check() error {
	c := r.claim()
	switch {
	case r.GPU.UUID == "" && !c.Making():
		return errors.New("the request names no GPU")
	case len(r.Slices) == 0:
		return errors.New("the request names no slices")
	case slices.Contains(r.Slices, ""):
		return errors.New("the request names a slice without a name")
	case len(slices.Compact(slices.Sorted(slices.Values(r.Slices)))) != len(r.Slices):
		return fmt.Errorf("the request names a slice twice: %s", ListNames(r.Slices))
	case r.LimitBytes == 0:
		return errors.New("the request has no limit")
	}
	if err := c.checkMode(); err != nil {
		return fmt.Errorf("the request: %w", err)
	}
	return nil
}

// checkTogether checks requests for claims that are made together.
func checkTogether(reqs []Request) error {
	if len(reqs) == 0 {
		return errors.New("there is no request")
	}
	for i, req := range reqs {
		if err := req.check(); err != nil {
			return err
		}
		asked := req.claim()
		for _, other := range reqs[:i] {
			if c := other.claim(); len(asked.conflict(&c)) > 0 {
				return fmt.Errorf("two of the requests conflict: %s and %s", ListNames(other.Slices), ListNames(req.Slices))
			}
		}
	}
	return nil
}

// gpus lists the requests' GPUs for errors.
func gpus(reqs []Request) string {
	var names []string
	for _, req := range reqs {
		c := req.claim()
		names = append(names, c.PhysicalGPU())
	}
	slices.Sort(names)
	return ListNames(slices.Compact(names))
}
