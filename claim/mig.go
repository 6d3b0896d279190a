package claim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/claim/region"
)

// MakeWithin is how long a claim whose MIG instance is not created yet cannot be superseded. Creating one takes seconds, so a
// process that takes longer has died.
const MakeWithin = 2 * time.Minute

// beingMade reports whether the claim's MIG instance is being created.
func (r *record) beingMade(now time.Time) bool { return r.Making() && now.Sub(r.Created) <= MakeWithin }

// CompleteMIG sets the created MIG instance of a claim: gpu is the instance, gi and ci are the driver's IDs of its GPU instance
// and its compute instance. From then on the claim can be bound. If the claim is gone, so that the instance is not needed, the
// error is ErrUnknownClaim.
//
// The driver may give the UUID of a destroyed instance to another. Claims on the earlier one are superseded.
func (l *Ledger) CompleteMIG(ctx context.Context, id string, gpu GPU, gi, ci int) error {
	if gpu.UUID == "" {
		return fmt.Errorf("completing claim %s: the MIG instance has no UUID", id)
	}
	return l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		if !r.Making() {
			return fmt.Errorf("completing claim %s: it waits for no MIG instance (mode %s, GPU %s)", id, r.Mode,
				r.GPU.UUID)
		}
		made := *r
		mig := *r.MIG
		mig.GPUInstance, mig.ComputeInstance, mig.Created = gi, ci, l.now()
		made.GPU, made.MIG = gpu, &mig
		older, err := l.supersededBy(snap.without(id), &made.Claim)
		if err != nil {
			return fmt.Errorf("completing claim %s: %w", id, err)
		}
		made.Supersedes = slices.Concat(made.Supersedes, older)
		if made.wantsRegion() {
			if err := region.Create(l.regionPath(id), made.header()); err != nil {
				return accessError(err)
			}
		}
		if err := l.replaceDurably(snap, r, &made); err != nil {
			l.removeRegion(id)
			return accessError(err)
		}
		snap.records[id] = &made
		l.finishSuperseding(snap)
		l.logger.Info("instance of a claim made", "claim", id, "instance", gpu.UUID, "profile", mig.Profile,
			"gpu", mig.GPUUUID, "start", mig.Start, "size", mig.Size)
		return nil
	})
}

// mustBeMade returns an error if the claim's MIG instance is not created yet.
func (r *record) mustBeMade() error {
	if !r.Making() {
		return nil
	}
	return fmt.Errorf("claim %s: its MIG instance is not created yet, since the device plugin ended while it created the "+
		"instance; stop the job and run it again", r.ID)
}
