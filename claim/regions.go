package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tranche-gpu/tranche/claim/driverlimit"
	"github.com/tranche-gpu/tranche/claim/region"
)

// header returns the header that the claim's region has to have.
func (c *Claim) header() region.Header {
	return region.Header{
		ClaimID:      c.ID,
		GPUUUID:      c.GPU.UUID,
		LimitBytes:   c.LimitBytes,
		ContextBytes: c.GPU.ContextBytes,
		SpillBytes:   c.GPUHostMemoryBytes,
	}
}

// PrepareRegion prepares a claim's region for the container that is to have the claim, and returns its directory. The region
// has the claim's limit, and how many bytes of managed memory on the host that container may allocate beyond it: this holds
// until the container is gone, also if the region has to be created again. An existing region stays in place.
//
// If a living container has the claim, the error is a *BoundError, and its region does not change.
func (l *Ledger) PrepareRegion(ctx context.Context, id, containerID string, gpuHostMemoryBytes uint64) (string, error) {
	dir := l.regionPath(id)
	return dir, l.read(ctx, func(snap *snapshot) error {
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
		released, err := snap.get(r.ID)
		if err != nil {
			return err
		}
		r = released
	}
	if r.GPUHostMemoryBytes != gpuHostMemoryBytes {
		changed := *r
		changed.GPUHostMemoryBytes = gpuHostMemoryBytes
		if err := l.replace(snap, &changed); err != nil {
			return err
		}
		r = &changed
		snap.records[r.ID] = r
	}
	if err := l.refreshStart(r); err != nil {
		return err
	}
	return l.ensureRegion(r, l.regionPath(r.ID))
}

// ensureRegion creates or corrects the region of a claim that no living container has.
func (l *Ledger) ensureRegion(r *record, dir string) error {
	want := r.header()
	have, err := region.ReadHeader(dir)
	if err == nil {
		if have == want {
			return l.ensureBounded(r, dir)
		}
		same := have
		same.LimitBytes, same.SpillBytes, same.UncountedBytes = want.LimitBytes, want.SpillBytes, want.UncountedBytes
		if same == want {
			l.logger.Info("limit changed", "claim", r.ID, "from_bytes", have.LimitBytes, "to_bytes", want.LimitBytes,
				"spill_from_bytes", have.SpillBytes, "spill_to_bytes", want.SpillBytes)
			return errors.Join(region.SetLimit(dir, want.LimitBytes), region.SetSpill(dir, want.SpillBytes),
				region.SetUncounted(dir, want.UncountedBytes))
		}
		err = errors.New("it is the region of another claim or GPU")
	}
	// A region that a living process has mapped cannot be replaced: the process would use the old one.
	if inUse, useErr := region.InUse(dir); useErr == nil && inUse {
		return fmt.Errorf("the region %s of claim %s is broken, and its container still uses it (stop that first): %w",
			dir, r.ID, err)
	}
	if !errors.Is(err, os.ErrNotExist) {
		l.logger.Warn("making a broken region anew", "claim", r.ID, "error", err)
	}
	return l.makeAnew(r, dir)
}

// ensureBounded moves a region to a file system of its own before a container gets it.
func (l *Ledger) ensureBounded(r *record, dir string) error {
	if !canBound() || region.Bounded(dir) {
		return nil
	}
	if inUse, err := region.InUse(dir); err == nil && !inUse {
		return l.makeAnew(r, dir)
	}
	return nil // made by an earlier version: it stays until its container is gone
}

// makeAnew creates the region of a claim that no container uses.
func (l *Ledger) makeAnew(r *record, dir string) error {
	if err := region.Remove(dir); err != nil {
		return fmt.Errorf("creating the region of claim %s again: %w", r.ID, err)
	}
	if !canBound() {
		return region.Create(dir, r.header())
	}
	err := region.CreateBounded(dir, r.header())
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrPermission) {
		l.logger.Warn("a container can fill the file system of the regions: its own region could not be bounded",
			"claim", r.ID, "error", err)
		return region.Create(dir, r.header())
	}
	return err
}

// canBound reports whether regions can be bounded: mounting needs root, and regions of other users are in no container.
func canBound() bool { return os.Geteuid() == 0 }

// ErrNotCounted is returned for the usage of a claim without a limit, whose container has no shadow library that counts.
var ErrNotCounted = errors.New("the claim has no limit, so what its container uses is not counted")

// Usage returns what the processes of a claim use: nothing if it has no container. For a claim without a limit the error is
// ErrNotCounted, unless its container has another claim with one.
func (l *Ledger) Usage(ctx context.Context, id string) (u region.Usage, err error) {
	lockErr := l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err == nil {
			u, err = l.UsageOf(&r.Claim)
		}
		return err
	})
	return u, lockErr
}

// UsageOf is Usage for a claim of List or Recent.
func (l *Ledger) UsageOf(c *Claim) (region.Usage, error) {
	if c.ByDriver() {
		return DriverUsage(l.runDir, c, l.now())
	}
	u, err := region.ReadOf(l.regionPath(c.ID), c.header())
	if err == nil {
		return u, nil
	}
	return c.withoutRegion(err)
}

// DriverUsage returns what the driver counts for a claim whose limit the driver enforces, as the governor has published it in a run
// directory.
func DriverUsage(runDir string, c *Claim, now time.Time) (region.Usage, error) {
	u := region.Usage{LimitBytes: c.LimitBytes, ContextBytes: c.GPU.ContextBytes, Processes: []region.Process{}}
	if c.Container == nil || !c.Released.IsZero() || !Alive(*c.Container) {
		return u, nil
	}
	report, err := driverlimit.Read(runDir)
	switch {
	case err != nil:
		return u, err
	case report == nil || now.Sub(report.Written) > driverlimit.StaleAfter:
		return u, fmt.Errorf("read what the GPU driver counts for claim %s: no governor runs that publishes it; start tranche governor", c.ID)
	}
	counted, ok := report.Claims[c.ID]
	switch {
	case !ok || counted.Container != c.ContainerKey(): // it has started a moment ago
		return u, nil
	case counted.Problem != "":
		return u, fmt.Errorf("hold claim %s to its limit: %s", c.ID, counted.Problem)
	}
	u.UsedBytes, u.PeakBytes = counted.UsedBytes, counted.PeakBytes
	return u, nil
}

// SetUncounted takes what a claim's processes hold beyond what they count from its limit, until its next container.
func (l *Ledger) SetUncounted(c *Claim, uncountedBytes uint64) error {
	return region.SetUncounted(l.regionPath(c.ID), uncountedBytes)
}

// withoutRegion returns the usage of a claim whose region could not be read.
func (c *Claim) withoutRegion(err error) (region.Usage, error) {
	none := errors.Is(err, os.ErrNotExist)
	if none && !c.Limited() {
		return region.Usage{}, ErrNotCounted
	}
	if !none || c.Container != nil && Alive(*c.Container) {
		return region.Usage{}, fmt.Errorf("reading the usage of claim %s: %w", c.ID, err)
	}
	u := region.Usage{LimitBytes: c.LimitBytes, ContextBytes: c.GPU.ContextBytes, Processes: []region.Process{}}
	if c.GPUHostMemoryBytes > 0 {
		u.Spill = &region.Spill{LimitBytes: c.GPUHostMemoryBytes}
	}
	return u, nil
}
