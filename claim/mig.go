package claim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/claim/region"
)

// MakeWithin is how long a claim on an instance by MIG that is still to be made is not given to others. Making one takes
// seconds; whoever takes longer has died.
const MakeWithin = 2 * time.Minute

// beingMade tells whether somebody is making the claim's instance.
func (r *record) beingMade(now time.Time) bool { return r.Making() && now.Sub(r.Created) <= MakeWithin }

// CompleteMIG tells a claim that its instance by MIG is made: gpu is the instance, gi and ci are the driver's IDs of its
// GPU instance and its compute instance. From then on containers can have the claim. If the claim is gone, so that nobody
// wants the instance, the error is ErrUnknownClaim.
//
// The driver may give the UUID of an instance that is gone to another. Claims on the earlier one are superseded.
func (l *Ledger) CompleteMIG(ctx context.Context, id string, gpu GPU, gi, ci int) error {
	if gpu.UUID == "" {
		return fmt.Errorf("completing claim %s: the instance has no UUID", id)
	}
	return l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		if !r.Making() {
			return fmt.Errorf("completing claim %s: it waits for no instance by MIG (it is of mode %s, on %s)", id, r.Mode,
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

// mustBeMade refuses what takes the claim's GPU as long as that is not made.
func (r *record) mustBeMade() error {
	if !r.Making() {
		return nil
	}
	return fmt.Errorf("claim %s waits for its instance by MIG, which is not made yet: only who makes it knows the claim's "+
		"token, so the device plugin has died while it did; stop the job and run it again", r.ID)
}
