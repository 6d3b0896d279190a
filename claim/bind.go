package claim

import (
	"context"
	"fmt"

	"github.com/tranche-gpu/tranche/claim/driverlimit"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// Bind binds a claim to a container, of which the ID, runtime and init process are required. The process's start time and the
// boot are looked up if they are not set.
//
// A claim whose container is gone can be bound again, since Nomad restarts a task in place without a new reservation.
// If another living container has it, the error is a *BoundError.
func (l *Ledger) Bind(ctx context.Context, id string, c Container) error {
	c, err := l.complete(c)
	if err != nil {
		return fmt.Errorf("binding claim %s to container %s: %w", id, c.ID, err)
	}
	return l.read(ctx, func(snap *snapshot) error {
		r, err := snap.get(id)
		if err != nil {
			return fmt.Errorf("binding to container %s: %w", c.ID, err)
		}
		if r.held() && !r.Container.same(c) {
			return &BoundError{Claim: r.claim(), Container: c}
		}
		if err := r.mustBeMade(); err != nil {
			return fmt.Errorf("binding to container %s: %w", c.ID, err)
		}
		bound := *r
		bound.Container = &c
		bound.Starter = nil
		bound.Released = zeroTime
		if err := l.replace(snap, &bound); err != nil {
			return fmt.Errorf("binding claim %s to container %s: %w", id, c.ID, err)
		}
		l.logger.Info("claim bound", "claim", id, "container", c.ID, "runtime", c.Runtime, "pid", c.InitPID,
			"workload", l.workloadText(id))
		return nil
	})
}

// complete adds what distinguishes the init process from others with the same process ID.
func (l *Ledger) complete(c Container) (Container, error) {
	if c.ID == "" {
		return c, fmt.Errorf("the container has no ID")
	}
	p, err := proc.Find(c.InitPID)
	if err != nil {
		return c, fmt.Errorf("looking for its init process %d: %w", c.InitPID, err)
	}
	if c.InitStartTime == 0 {
		c.InitStartTime = p.StartTime
	}
	if c.BootID == "" {
		c.BootID = p.BootID
	}
	if c.Bound.IsZero() {
		c.Bound = l.now()
	}
	if !Alive(c) {
		return c, fmt.Errorf("its init process %d has ended", c.InitPID)
	}
	return c, nil
}

// same reports whether two containers are one. A runtime may use the ID of a container that is gone for another, so the
// processes are compared too.
func (c *Container) same(o Container) bool {
	return c.Runtime == o.Runtime && c.ID == o.ID &&
		c.InitPID == o.InitPID && c.InitStartTime == o.InitStartTime && c.BootID == o.BootID
}

// Release releases a claim from a container. The claim is dormant then: a restart in place can bind it again, until it is
// superseded or has been dormant for DormantFor. An external claim is removed, since no container comes back for it. A claim
// that is gone, or that another container has, does not change.
//
// Nor does one whose container lives: IDs are unique within one runtime's directory only, so the ID may be that of another
// container. If the container ends a moment later, the next Bind or Sweep releases the claim.
func (l *Ledger) Release(ctx context.Context, id, containerID string) error {
	return l.read(ctx, func(snap *snapshot) error {
		r, ok := snap.records[id]
		if !ok || r.Container == nil || r.Container.ID != containerID || !r.Released.IsZero() || r.held() {
			return nil
		}
		return l.release(snap, r)
	})
}

// Unbind undoes a Bind whose container does not start, although its init process may still exist. A claim that is gone, or
// that another container has, does not change.
func (l *Ledger) Unbind(ctx context.Context, id string, c Container) error {
	return l.read(ctx, func(snap *snapshot) error {
		r, ok := snap.records[id]
		if !ok || r.Container == nil || !r.Released.IsZero() ||
			r.Container.Runtime != c.Runtime || r.Container.ID != c.ID || r.Container.InitPID != c.InitPID {
			return nil
		}
		return l.release(snap, r)
	})
}

// notePeak records the most memory that a claim's container has counted, which goes with its region otherwise.
func (l *Ledger) notePeak(r *record) {
	usage, err := l.lastUsage(r)
	if err != nil || usage.PeakBytes == 0 {
		return
	}
	w, _ := l.Workload(r.ID)
	w.PeakBytes = usage.PeakBytes
	if err := l.noteWorkload(r.ID, w); err != nil {
		l.logger.Warn("the peak of a released claim could not be recorded", "claim", r.ID, "error", err)
	}
}

// lastUsage returns what a claim's container has used until it ended.
func (l *Ledger) lastUsage(r *record) (u region.Usage, err error) {
	if !r.ByDriver() {
		return region.Read(l.regionPath(r.ID))
	}
	report, err := driverlimit.Read(l.runDir)
	if err == nil && report != nil && report.Claims[r.ID].Container == r.ContainerKey() {
		u.PeakBytes = report.Claims[r.ID].PeakBytes
	}
	return u, err
}

// release makes a claim dormant, and removes its region: the next container gets a new one, whatever this container's
// processes wrote into theirs. A claim that no container comes back for is removed. The claim may have had no container.
func (l *Ledger) release(snap *snapshot, r *record) error {
	if !r.comesBack() && l.sweepExternal(snap, r) {
		return nil
	}
	released := *r
	released.Released = l.now()
	released.GPUHostMemoryBytes = 0 // the next container has to ask for itself
	if err := l.replace(snap, &released); err != nil {
		return fmt.Errorf("releasing claim %s: %w", r.ID, err)
	}
	snap.records[r.ID] = &released
	if err := l.Refresh(r.ID, released.Released); err != nil { // see awaited
		return err
	}
	l.notePeak(r)
	if inUse, err := region.InUse(l.regionPath(r.ID)); err != nil || !inUse {
		l.removeRegion(r.ID)
	} else if err := region.SetSpill(l.regionPath(r.ID), 0); err != nil {
		l.logger.Warn("taking back the host memory of a released claim", "claim", r.ID, "error", err)
	}
	container := ""
	if r.Container != nil {
		container = r.Container.ID
	}
	l.logger.Info("claim released", "claim", r.ID, "container", container, "workload", l.workloadText(r.ID))
	return nil
}
