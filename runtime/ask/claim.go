package ask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/claim/memsize"
	"tranche.dev/tranche/runtime/nodeinfo"
)

// Claim makes the claim that a container asks for, on whichever GPU it fits best. The container takes as many slices as
// hold what it asks for; its limit is what it asks for. The claim has to be bound within claim.BindWithin, and while the
// calling process lives, which becomes the next OCI runtime by exec.
func Claim(
	ctx context.Context, ledger *claim.Ledger, inventory []nodeinfo.GPU, sliceBytes uint64, ask Ask,
) (*claim.Claim, error) {
	starter, err := claim.ThisProcess()
	if err != nil {
		return nil, err
	}
	candidates, err := ask.candidates(inventory, sliceBytes)
	if err == nil {
		var made *claim.Claim
		made, err = ledger.ReserveFit(ctx, claim.FitRequest{
			Candidates: candidates,
			SliceBytes: sliceBytes,
			LimitBytes: ask.MemoryBytes,
			Owner:      claim.OwnerExternal,
			Starter:    &starter,
		})
		if err == nil {
			return made, nil
		}
	}
	return nil, fmt.Errorf("the container asks for %s of %s: %w", memsize.Format(ask.MemoryBytes), ask.GPU, err)
}

// candidates are the GPUs that the container may get a part of.
func (a Ask) candidates(inventory []nodeinfo.GPU, sliceBytes uint64) ([]claim.Candidate, error) {
	var all []claim.Candidate
	var contextBytes uint64 // the least that a context takes on one of the GPUs asked for
	matching := slices.DeleteFunc(usable(inventory), func(g nodeinfo.GPU) bool { return !a.GPU.Matches(g) })
	for _, g := range matching {
		if contextBytes == 0 || g.ContextBytes < contextBytes {
			contextBytes = g.ContextBytes
		}
		if a.MemoryBytes < g.ContextBytes {
			continue
		}
		all = append(all, claim.Candidate{
			GPU:    claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: g.ContextBytes},
			Slices: int(g.UsableBytes / sliceBytes),
		})
	}
	switch {
	case len(inventory) == 0:
		return nil, errors.New("this node has no GPU that answers; nvidia-smi -L lists those that there are")
	case len(matching) == 0:
		return nil, fmt.Errorf("this node has no such GPU, or only one that is split into MIG instances: it has %s",
			describe(inventory))
	case len(all) == 0:
		return nil, fmt.Errorf("a CUDA context takes %s of it before the first allocation; ask for more than that",
			memsize.Format(contextBytes))
	}
	return all, nil
}

// usable leaves out the GPUs that MIG has split: only their instances can be used then.
func usable(inventory []nodeinfo.GPU) []nodeinfo.GPU {
	return slices.DeleteFunc(slices.Clone(inventory), func(g nodeinfo.GPU) bool {
		return slices.ContainsFunc(inventory, func(other nodeinfo.GPU) bool { return other.MIGParent == g.UUID })
	})
}

func describe(inventory []nodeinfo.GPU) string {
	var all []string
	for _, g := range inventory {
		all = append(all, fmt.Sprintf("%d (%s, %s, PCI %s)", g.Index, g.Name, g.UUID, g.PCIBusID))
	}
	return strings.Join(all, ", ")
}
