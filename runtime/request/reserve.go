package request

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/internal/proc"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// Node is the node on which a container makes its request.
type Node struct {
	GPUs []gpuinfo.GPU
	// Layout is how the device plugin shares the GPUs; those without an entry are shared in slices.
	Layout map[string]layout.GPU
	// SliceBytes is the memory of one slice of GPUs whose entry has none.
	SliceBytes uint64
	// Enforcement is what is to hold containers to their limits on GPUs whose entry does not say.
	Enforcement claim.Enforcement
}

// sharing returns how a GPU is shared. A MIG instance without an entry is shared as its physical GPU.
func (n Node) sharing(g gpuinfo.GPU) layout.GPU {
	said, ok := n.Layout[g.UUID]
	if !ok {
		said = n.Layout[g.MIGParent]
	}
	return layout.GPU{
		Mode:       cmp.Or(said.Mode, claim.ModeSlice),
		SliceBytes: cmp.Or(said.SliceBytes, n.SliceBytes),
		Shares:     said.Shares,
	}
}

// enforced returns what holds containers on a GPU to their limits: what the device plugin has published, else the driver where it
// may and can.
func (n Node) enforced(g gpuinfo.GPU) claim.Enforcement {
	if said, ok := n.Layout[g.UUID]; ok {
		return said.Enforcement
	}
	if n.Enforcement == claim.EnforcementLibrary || !g.DriverLimits {
		return claim.EnforcementLibrary
	}
	return claim.EnforcementDriver
}

// enforceable reports whether containers on a GPU can be held to their limits by what is to do that.
func (n Node) enforceable(g gpuinfo.GPU) bool {
	_, said := n.Layout[g.UUID]
	return said || n.Enforcement != claim.EnforcementDriver || g.DriverLimits
}

// Reserve makes the claim that a container requests, on the GPU that it fits best. It takes as many slices as the requested
// memory needs; the limit is the requested memory. The claim has to be bound within claim.BindWithin and before the calling
// process, which becomes the next OCI runtime by exec, ends. The workload is recorded with the claim.
func Reserve(ctx context.Context, ledger *claim.Ledger, node Node, r Request, workload claim.Workload) (*claim.Claim, error) {
	starter, err := proc.Self()
	if err != nil {
		return nil, err
	}
	candidates, err := r.candidates(node)
	if err == nil {
		var made *claim.Claim
		made, err = ledger.ReserveFit(ctx, claim.FitRequest{
			Candidates: candidates,
			SliceBytes: node.SliceBytes,
			LimitBytes: r.MemoryBytes,
			Owner:      claim.OwnerExternal,
			Workload:   workload,
			Starter:    &starter,
		})
		if err == nil {
			return made, nil
		}
	}
	return nil, fmt.Errorf("the container requests %s of %s: %w", size.Format(r.MemoryBytes), r.GPU, err)
}

// candidates returns the GPUs that the claim may be on.
func (r Request) candidates(node Node) ([]claim.Candidate, error) {
	sliced, err := r.sliced(node)
	if err != nil {
		return nil, err
	}
	if g := sliced[0]; !slices.ContainsFunc(sliced, node.enforceable) {
		return nil, fmt.Errorf("enforcement = %q, but the driver cannot limit memory on GPU %d: %s; set %q in the configuration",
			node.Enforcement, g.Index, g.NoDriverLimits, claim.EnforcementAuto)
	}
	sliced = slices.DeleteFunc(sliced, func(g gpuinfo.GPU) bool { return !node.enforceable(g) })
	var all []claim.Candidate
	for _, g := range sliced {
		sharing := node.sharing(g)
		if size := sharing.SliceBytes; r.MemoryBytes >= g.ContextBytes {
			all = append(all, claim.Candidate{
				GPU:    claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: g.ContextBytes},
				Slices: int(g.UsableBytes / size), SliceBytes: size, Shares: sharing.Shares, Enforcement: node.enforced(g),
			})
		}
	}
	if len(all) == 0 {
		least := slices.MinFunc(sliced, func(x, y gpuinfo.GPU) int { return cmp.Compare(x.ContextBytes, y.ContextBytes) })
		return nil, fmt.Errorf("a CUDA context takes %s of it before the first allocation; request more",
			size.Format(least.ContextBytes))
	}
	return all, nil
}

// sliced returns the selected GPUs that are shared in slices.
func (r Request) sliced(node Node) ([]gpuinfo.GPU, error) {
	matching := slices.DeleteFunc(usable(node.GPUs), func(g gpuinfo.GPU) bool { return !r.GPU.Matches(g) })
	switch {
	case len(node.GPUs) == 0:
		return nil, errors.New("this node has no GPU that answers; nvidia-smi -L lists those that there are")
	case len(matching) == 0:
		return nil, fmt.Errorf("this node has no such GPU, or only one that is split into MIG instances: it has %s",
			describe(node.GPUs))
	}
	modes := node.describeModes(matching)
	sliced := slices.DeleteFunc(matching, func(g gpuinfo.GPU) bool { return node.sharing(g).Mode != claim.ModeSlice })
	if len(sliced) == 0 {
		return nil, fmt.Errorf("no such GPU is shared in slices, the only mode that containers outside Nomad can request: %s; start the "+
			"container by Nomad, or change the mode in the device plugin's options", modes)
	}
	return sliced, nil
}

func (n Node) describeModes(gpus []gpuinfo.GPU) string {
	var all []string
	for _, g := range gpus {
		all = append(all, fmt.Sprintf("GPU %d (%s, %s) is in mode %s", g.Index, g.Name, g.UUID, n.sharing(g).Mode))
	}
	return strings.Join(all, ", ")
}

// usable returns the GPUs without those that are split into MIG instances, of which only the instances can be used.
func usable(inventory []gpuinfo.GPU) []gpuinfo.GPU {
	return slices.DeleteFunc(slices.Clone(inventory), func(g gpuinfo.GPU) bool {
		return slices.ContainsFunc(inventory, func(other gpuinfo.GPU) bool { return other.MIGParent == g.UUID })
	})
}

func describe(inventory []gpuinfo.GPU) string {
	var all []string
	for _, g := range inventory {
		all = append(all, fmt.Sprintf("%d (%s, %s, PCI %s)", g.Index, g.Name, g.UUID, g.PCIBusID))
	}
	return strings.Join(all, ", ")
}
