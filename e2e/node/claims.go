package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/claim"
)

// Claims returns the claims that a task's allocated slices belong to, in the order of the GPUs' indexes.
func (n *Node) Claims(ctx context.Context, allocID, task string) ([]*claim.Claim, error) {
	info, _, err := n.Agent.API.Allocations().Info(allocID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	all, problems, err := n.listClaims(ctx)
	if err != nil {
		return nil, err
	}
	var held []*claim.Claim
	for _, device := range info.AllocatedResources.Tasks[task].Devices {
		i := slices.IndexFunc(all, func(c *claim.Claim) bool { return slices.Contains(c.Slices, device.DeviceIDs[0]) })
		if i < 0 {
			return nil, fmt.Errorf("no claim holds %s of allocation %s (problems in the ledger: %v)",
				device.DeviceIDs[0], allocID, problems)
		}
		held = append(held, all[i])
	}
	slices.SortFunc(held, func(a, b *claim.Claim) int { return a.GPU.Index - b.GPU.Index })
	return held, nil
}

// AllClaims are the claims in the node's ledger, in which everything has to be readable.
func (n *Node) AllClaims(ctx context.Context) ([]*claim.Claim, error) {
	all, problems, err := n.listClaims(ctx)
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("the ledger of %s has problems: %v", n.StateDir(), problems)
	}
	return all, err
}

func (n *Node) listClaims(ctx context.Context) ([]*claim.Claim, []claim.Problem, error) {
	ledger, err := claim.Open(claim.Options{StateDir: n.StateDir(), RunDir: n.RunDir()})
	if err != nil {
		return nil, nil, err
	}
	return ledger.List(ctx)
}

// InitPID is the first process of the container that a task's claims are bound to.
func (n *Node) InitPID(ctx context.Context, allocID, task string) (int, error) {
	claims, err := n.Claims(ctx, allocID, task)
	if err != nil {
		return 0, err
	}
	if len(claims) == 0 || claims[0].Container == nil {
		return 0, fmt.Errorf("task %s of allocation %s has no claim that is bound to a container", task, allocID)
	}
	return claims[0].Container.InitPID, nil
}

// Group is the simulator's name for the container that a task's claims are bound to.
func (n *Node) Group(ctx context.Context, allocID, task string) (string, error) {
	pid, err := n.InitPID(ctx, allocID, task)
	if err != nil {
		return "", err
	}
	return GroupOf(pid)
}
