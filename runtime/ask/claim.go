package ask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/internal/proc"
	"github.com/tranche-gpu/tranche/runtime/nodeinfo"
)

// Node is where a container asks.
type Node struct {
	GPUs []nodeinfo.GPU
	// Layout is how the device plugin shares the GPUs; one that it does not name is in slices.
	Layout map[string]layout.GPU
	// SliceBytes is the memory of one slice where the layout does not say.
	SliceBytes uint64
}

// sharing is how a GPU is shared. An instance is shared as the GPU that it is cut out of.
func (n Node) sharing(g nodeinfo.GPU) layout.GPU {
	said := n.Layout[cmp.Or(g.MIGParent, g.UUID)]
	return layout.GPU{
		Mode:       cmp.Or(said.Mode, claim.ModeSlice),
		SliceBytes: cmp.Or(said.SliceBytes, n.SliceBytes),
	}
}

// Claim makes the claim that a container asks for, on whichever GPU it fits best. The container takes as many slices as
// hold what it asks for; its limit is what it asks for. The claim has to be bound within claim.BindWithin, and while the
// calling process lives, which becomes the next OCI runtime by exec.
func Claim(ctx context.Context, ledger *claim.Ledger, node Node, ask Ask) (*claim.Claim, error) {
	starter, err := proc.Self()
	if err != nil {
		return nil, err
	}
	candidates, err := ask.candidates(node)
	if err == nil {
		var made *claim.Claim
		made, err = ledger.ReserveFit(ctx, claim.FitRequest{
			Candidates: candidates,
			SliceBytes: node.SliceBytes,
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
func (a Ask) candidates(node Node) ([]claim.Candidate, error) {
	sliced, err := a.sliced(node)
	if err != nil {
		return nil, err
	}
	var all []claim.Candidate
	for _, g := range sliced {
		if size := node.sharing(g).SliceBytes; a.MemoryBytes >= g.ContextBytes {
			all = append(all, claim.Candidate{
				GPU:    claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: g.ContextBytes},
				Slices: int(g.UsableBytes / size), SliceBytes: size,
			})
		}
	}
	if len(all) == 0 {
		least := slices.MinFunc(sliced, func(x, y nodeinfo.GPU) int { return cmp.Compare(x.ContextBytes, y.ContextBytes) })
		return nil, fmt.Errorf("a CUDA context takes %s of it before the first allocation; ask for more than that",
			memsize.Format(least.ContextBytes))
	}
	return all, nil
}

// sliced are the GPUs asked for that are cut into slices.
func (a Ask) sliced(node Node) ([]nodeinfo.GPU, error) {
	matching := slices.DeleteFunc(usable(node.GPUs), func(g nodeinfo.GPU) bool { return !a.GPU.Matches(g) })
	switch {
	case len(node.GPUs) == 0:
		return nil, errors.New("this node has no GPU that answers; nvidia-smi -L lists those that there are")
	case len(matching) == 0:
		return nil, fmt.Errorf("this node has no such GPU, or only one that is split into MIG instances: it has %s",
			describe(node.GPUs))
	}
	modes := node.describeModes(matching)
	sliced := slices.DeleteFunc(matching, func(g nodeinfo.GPU) bool { return node.sharing(g).Mode != claim.ModeSlice })
	if len(sliced) == 0 {
		return nil, fmt.Errorf("no such GPU is cut into slices here, which is all that a container can ask for by itself: %s; "+
			"for another mode have Nomad start the container, or have the operator change the mode in the device plugin's "+
			"options", modes)
	}
	return sliced, nil
}

func (n Node) describeModes(gpus []nodeinfo.GPU) string {
	var all []string
	for _, g := range gpus {
		all = append(all, fmt.Sprintf("GPU %d (%s, %s) is in mode %s", g.Index, g.Name, g.UUID, n.sharing(g).Mode))
	}
	return strings.Join(all, ", ")
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
