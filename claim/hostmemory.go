package claim

import (
	"context"
	"fmt"
)

// SetGPUHostMemory states how much the container that is to hold a claim may allocate beyond the limit, as managed memory
// that lives on the host; 0 is nothing. The claim's region is there afterwards and says so; one that was there already
// stays in place. It holds until that container is gone, also when the region has to be made anew.
//
// A container that has the claim and lives keeps what it started with: the error is then a *BoundError.
func (l *Ledger) SetGPUHostMemory(ctx context.Context, id, containerID string, bytes uint64) error {
	return l.read(ctx, func(b *book) error {
		r, err := b.get(id)
		if err != nil {
			return err
		}
		if r.held() {
			return &BoundError{Claim: r.claim(), Container: Container{ID: containerID}}
		}
		if err := l.setGPUHostMemory(b, r, bytes); err != nil {
			return accessError(fmt.Errorf("setting the host memory of claim %s: %w", id, err))
		}
		return nil
	})
}

func (l *Ledger) setGPUHostMemory(b *book, r *record, bytes uint64) error {
	if r.Container != nil && r.Released.IsZero() {
		if err := l.release(b, r); err != nil { // now, since it takes back what the container had
			return err
		}
		if _, err := b.get(r.ID); err != nil {
			return err
		}
	}
	if r.GPUHostMemoryBytes != bytes {
		changed := *r
		changed.GPUHostMemoryBytes = bytes
		if err := writeRecord(l.claims, &changed); err != nil {
			return err
		}
		*r = changed
	}
	return l.ensureRegion(r, l.regionPath(r.ID))
}
