// Package owners looks up in Nomad's API which tasks claims were made for, if the operator gives access. Tranche's task driver
// records its own tasks; those of other drivers are unknown if their start fails. It changes nothing in Nomad.
package owners

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/changelog"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
)

// Period is how often Nomad is queried, as long as there are claims with an unknown workload.
const Period = 10 * time.Second

// clockSkew is how much later than a claim its allocation may have been created, by the server's clock.
const clockSkew = time.Minute

// Owners records what Nomad says of the node's claims. Make one with New.
type Owners struct {
	client client
	ledger *share.Ledger
	logger hclog.Logger
	log    changelog.Log
	// asked is when Nomad first answered a query for a claim, by ID.
	asked map[string]time.Time
}

// New returns one that has queried nothing yet.
func New(o nomadapi.Options, ledger *share.Ledger, logger hclog.Logger) *Owners {
	return &Owners{client: client{options: o}, ledger: ledger, logger: logger, asked: make(map[string]time.Time)}
}

// Watch records until the context ends. It returns at once where there is no access.
func (o *Owners) Watch(ctx context.Context) {
	if o.client.options.Address == "" {
		return
	}
	ticker := time.NewTicker(Period)
	defer ticker.Stop()
	for {
		err := o.Update(ctx)
		if ctx.Err() != nil {
			return
		}
		if o.log.Changed("", err) && err != nil {
			o.logger.Warn("cannot look up in Nomad which tasks claims are for; trying again", "nomad_address", o.client.options.Address,
				"error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Update records once what Nomad says of claims whose names it has not verified, and gives up those that are reserved for
// allocations that have ended.
func (o *Owners) Update(ctx context.Context) error {
	claims, _, err := o.ledger.Recent(ctx)
	if err != nil {
		return err
	}
	claims = o.unclear(claims)
	if len(claims) == 0 {
		return nil
	}
	allocations, err := o.client.allocations(ctx)
	if err != nil {
		return err
	}
	o.answered(claims)
	for _, c := range claims {
		a, task := find(allocations, c)
		if a == nil {
			continue
		}
		if err := o.ledger.NoteWorkload(ctx, c.ID, a.workload(task)); errors.Is(err, claim.ErrUnknownClaim) {
			continue // it has ended meanwhile
		} else if err != nil {
			return err
		}
		if a.ended() && o.reserved(c) {
			o.logger.Info("giving up a claim whose allocation has ended", "claim", c.ID, "allocation", a.ID)
			if err := o.ledger.GiveUpClaim(ctx, c.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// unclear returns the claims whose workload is to be looked up. Those that Nomad does not know, or the token does not show,
// are asked for no longer than a container may take to come.
func (o *Owners) unclear(claims []*claim.Claim) []*claim.Claim {
	names, now := o.ledger.Workloads(), o.ledger.Clock.Now()
	var unclear []*claim.Claim
	asked := make(map[string]time.Time)
	for _, c := range claims {
		if c.Owner != claim.OwnerNomad || names[c.ID].Verified && !o.reserved(c) {
			continue
		}
		first, before := o.asked[c.ID]
		if before {
			asked[c.ID] = first
		}
		if !before || now.Sub(first) <= claim.StartTimeout {
			unclear = append(unclear, c)
		}
	}
	o.asked = asked
	return unclear
}

// answered records that Nomad has answered a query for claims.
func (o *Owners) answered(claims []*claim.Claim) {
	now := o.ledger.Clock.Now()
	for _, c := range claims {
		if _, before := o.asked[c.ID]; !before {
			o.asked[c.ID] = now
		}
	}
}

func (o *Owners) reserved(c *claim.Claim) bool {
	return o.ledger.State(c, o.ledger.Clock.Now()) == claim.StateReserved
}

// find returns the allocation and the task that have a claim's devices: the newest one, since allocations that have ended may
// have had them before. One that is newer than the claim has another.
func find(all []allocation, c *claim.Claim) (found *allocation, task string) {
	for i := range all {
		a := &all[i]
		if a.AllocatedResources == nil || a.CreateTime > c.Created.Add(clockSkew).UnixNano() || found != nil && a.CreateTime <= found.CreateTime {
			continue
		}
		for name, resources := range a.AllocatedResources.Tasks {
			for _, device := range resources.Devices {
				if slices.Equal(slices.Sorted(slices.Values(device.DeviceIDs)), slices.Sorted(slices.Values(c.Slices))) {
					found, task = a, name
				}
			}
		}
	}
	return found, task
}

func (a *allocation) workload(task string) claim.Workload {
	w := claim.Workload{
		Namespace: a.Namespace, Job: a.JobID, Group: a.TaskGroup, Task: task, Allocation: a.ID, Verified: true,
	}
	if a.Job != nil {
		w.ParentJob = a.Job.ParentID
	}
	return w
}
