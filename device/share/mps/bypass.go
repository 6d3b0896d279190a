package mps

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/processes"
	"github.com/tranche-gpu/tranche/device/share"
)

// checkUnused returns an error while a claim of another mode or any process uses a GPU that has no daemon yet.
func (d *Daemons) checkUnused(ctx context.Context, g *share.GPU) error {
	claims, _, err := d.Ledger.List(ctx)
	if err != nil {
		return fmt.Errorf("list the claims on %s: %w", g.UUID, err)
	}
	var users []string
	for _, c := range claims {
		if c.Mode != claim.ModeMPS && c.PhysicalGPU() == g.UUID && d.Ledger.InUse(c) {
			users = append(users, "claim "+c.ID)
		}
	}
	running, err := d.Driver.Processes(ctx, g.UUID)
	if err != nil {
		return fmt.Errorf("list the processes on %s: %w", g.UUID, err)
	}
	for _, p := range running {
		if !p.OnlyRenders {
			users = append(users, fmt.Sprintf("process %d", p.PID))
		}
	}
	if len(users) == 0 {
		return nil
	}
	return &waitsError{fmt.Sprintf("the GPU %s waits for its MPS control daemon until %s is gone: only the daemon's server may "+
		"compute on it", g, strings.Join(users, ", "))}
}

// bypassError names the processes that compute on a GPU without its daemon. Programs of tasks find no GPU then.
func bypassError(g *share.GPU, pids []int) error {
	by, end := "process", "end it"
	if len(pids) > 1 {
		by, end = "processes", "end them"
	}
	return &waitsError{fmt.Sprintf("the GPU %s is used without its MPS control daemon, by %s %s: %s", g, by,
		strings.Trim(strings.ReplaceAll(fmt.Sprint(pids), " ", ", "), "[]"), end)}
}

// bypassing returns the processes that compute on a GPU without its daemon. A client that has just ended may be on the
// driver's list and no longer on the daemon's, so a process counts only if two checks find it.
func (d *Daemons) bypassing(ctx context.Context, uuid string) ([]int, error) {
	first, err := d.bypassingNow(ctx, uuid)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	second, err := d.bypassingNow(ctx, uuid)
	both := slices.DeleteFunc(second, func(pid int) bool { return !slices.Contains(first, pid) })
	return both, err
}

// bypassingNow returns the processes that are neither the server, nor in a container with a claim, nor clients that the
// daemon knows.
func (d *Daemons) bypassingNow(ctx context.Context, uuid string) ([]int, error) {
	found, err := d.computing(ctx, uuid)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	claims, _, err := d.Ledger.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the claims on %s: %w", uuid, err)
	}
	var alive []*claim.Claim
	for _, c := range claims {
		if d.Ledger.Runs(c) {
			alive = append(alive, c)
		}
	}
	clients, err := d.Manager.Clients(ctx, uuid)
	if err != nil {
		return nil, err
	}
	containers := processes.Of(alive)
	return slices.DeleteFunc(found, func(pid int) bool {
		return slices.Contains(clients, pid) || containers.Kind(pid) != processes.Unmanaged
	}), nil
}

// computing returns the processes that compute on a GPU, without its daemon's server.
func (d *Daemons) computing(ctx context.Context, uuid string) ([]int, error) {
	running, err := d.Driver.Processes(ctx, uuid)
	if err != nil {
		return nil, fmt.Errorf("list the processes on %s: %w", uuid, err)
	}
	var pids []int
	for _, p := range running {
		if !p.OnlyRenders && !d.Manager.Has(uuid, p.PID) {
			pids = append(pids, p.PID)
		}
	}
	return pids, nil
}
