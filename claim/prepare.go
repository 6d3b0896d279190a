package claim

import (
	"context"
	"fmt"
)

// PrepareRegion prepares a claim's region for the container that is to have the claim, and returns its directory. The region
// has the claim's limit, and how many bytes of managed memory on the host that container may allocate beyond it: this holds
// until the container is gone, also if the region has to be created again. An existing region stays in place.
//
// If a living container has the claim, the error is a *BoundError, and its region does not change.
func (l *Ledger) PrepareRegion(ctx context.Context, id, containerID string, gpuHostMemoryBytes uint64) (string, error) {
	return l.regionPath(id), l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return err
		}
		if r.held() {
			return &BoundError{Claim: r.claim(), Container: Container{ID: containerID}}
		}
		if err := r.mustBeMade(); err != nil {
			return err
		}
		if err := l.prepareRegion(snap, r, gpuHostMemoryBytes); err != nil {
			return accessError(fmt.Errorf("preparing the region of claim %s: %w", id, err))
		}
		return nil
	})
}

func (l *Ledger) prepareRegion(snap *snapshot, r *record, gpuHostMemoryBytes uint64) error {
	if r.Container != nil && r.Released.IsZero() {
		if err := l.release(snap, r); err != nil { // now, since it takes back what the container had
			return err
		}
		if _, err := snap.get(r.ID); err != nil {
			return err
		}
	}
	if r.GPUHostMemoryBytes != gpuHostMemoryBytes {
		changed := *r
		changed.GPUHostMemoryBytes = gpuHostMemoryBytes
		if err := l.replace(snap, &changed); err != nil {
			return err
		}
		*r = changed
	}
	if err := l.Refresh(r.ID, l.now()); err != nil {
		return err
	}
	return l.ensureRegion(r, l.regionPath(r.ID))
}
