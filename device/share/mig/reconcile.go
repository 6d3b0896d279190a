package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
)

// RestartTimeout is how long the instance of a claim whose container has ended waits for the next container. Nomad
// restarts a task in place with the same claim, by default after 15 seconds. A task that is restarted later than this gets
// an error, and with it a new reservation. An instance whose room is needed does not wait.
const RestartTimeout = 10 * time.Minute

// Reconcile destroys unused on-demand instances, and finds out what the GPUs have room for.
func (m *OnDemand) Reconcile(ctx context.Context, gpus []share.GPU) {
	for _, g := range gpus {
		if !g.OnDemand() || g.Problem != "" {
			continue
		}
		err := m.reconcile(ctx, &g)
		if ctx.Err() != nil {
			return
		}
		if m.log.Changed("instances of "+g.UUID, err) && err != nil {
			m.Logger.Warn("cannot clean up the MIG instances of a GPU; the next fingerprint tries again",
				"gpu", g.UUID, "name", g.GroupName(), "error", err)
		}
	}
}

func (m *OnDemand) reconcile(ctx context.Context, g *share.GPU) error {
	bounded, cancel := m.Driver.Limit(ctx)
	defer cancel()
	unlock, err := m.lock(bounded, g.UUID)
	if err != nil {
		return err
	}
	defer unlock()
	return m.collectGarbage(bounded, g)
}

// collectGarbage removes what nothing will use: claims of plugin processes that died while they created an instance,
// instances without a claim, dormant claims whose container did not come back, and dormant claims whose instance is gone.
// The caller has locked the GPU.
func (m *OnDemand) collectGarbage(ctx context.Context, g *share.GPU) error {
	s, err := m.readState(ctx, g, nil)
	if err != nil {
		m.setUnknown(g.UUID, err)
		return err
	}
	if !s.enabled { // somebody has turned MIG off
		m.Wake()
		return nil
	}
	expired := m.expired(g, s.idle)
	var errs []error
	for _, c := range s.dormant {
		errs = append(errs, m.dropWithoutInstance(ctx, s, c))
	}
	for _, instance := range s.idle {
		if instance.claim != nil && !expired[instance.claim.ID] {
			continue
		}
		if err := m.destroy(ctx, g, instance); err != nil {
			s.occupied = append(s.occupied, instance.Instance)
			errs = append(errs, err)
		}
	}
	m.setCapacity(g.UUID, s.capacity(g.Sizes))
	return errors.Join(errs...)
}

// sighting is a claim that was seen dormant: since when, by this process's clock, and when it was last refreshed.
type sighting struct{ since, refreshed time.Time }

// expired returns the dormant claims among those of idle instances whose container did not come back in time. That counts from
// when they were first seen dormant: times in the ledger are those of the machine's clock, which may be set.
func (m *OnDemand) expired(g *share.GPU, idle []idleInstance) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	expired, seen := make(map[string]bool), make(map[string]sighting)
	now := m.Ledger.Clock.Now()
	for _, i := range idle {
		if i.claim == nil {
			continue
		}
		is := sighting{since: now, refreshed: m.Ledger.Refreshed(i.claim)}
		if was, ok := m.dormant[g.UUID][i.claim.ID]; ok && was.refreshed.Equal(is.refreshed) {
			is.since = was.since
		}
		seen[i.claim.ID] = is
		expired[i.claim.ID] = now.Sub(is.since) > RestartTimeout
	}
	if m.dormant == nil {
		m.dormant = make(map[string]map[string]sighting)
	}
	m.dormant[g.UUID] = seen
	return expired
}

// dropWithoutInstance removes a dormant claim from the ledger if it has no instance.
func (m *OnDemand) dropWithoutInstance(ctx context.Context, s *state, c *claim.Claim) error {
	switch {
	case c.Making():
		m.Logger.Warn("taking back a claim whose MIG instance was never created", "claim", c.ID, "gpu", c.PhysicalGPU())
		return m.Ledger.Cancel(ctx, c.ID)
	case slices.ContainsFunc(s.idle, func(i idleInstance) bool { return i.claim == c }):
		return nil
	case slices.Contains(s.occupied, placeOf(c)): // something uses the instance without a claim
		return nil
	}
	m.Logger.Warn("the MIG instance of a claim is gone, so no container can come back for it", "claim", c.ID,
		"gpu", c.PhysicalGPU(), "instance", c.GPU.UUID)
	return m.drop(ctx, c)
}

// drop removes a claim without a container from the ledger.
func (m *OnDemand) drop(ctx context.Context, c *claim.Claim) error {
	if err := m.Ledger.Drop(ctx, c.ID); err != nil && !errors.Is(err, claim.ErrUnknownClaim) {
		return fmt.Errorf("drop claim %s, which has no container: %w", c.ID, err)
	}
	return nil
}

// destroy destroys an instance that nothing uses. The claim on it is dropped first, so that no container gets it any more.
func (m *OnDemand) destroy(ctx context.Context, g *share.GPU, instance idleInstance) error {
	if instance.claim != nil {
		if err := m.drop(ctx, instance.claim); err != nil {
			return err
		}
	}
	if err := m.Driver.Partitioner.DestroyInstance(ctx, g.UUID, instance.GPUInstance); err != nil {
		return err
	}
	m.Logger.Info("MIG instance destroyed", "gpu", g.UUID, "profile", instance.Profile, "slot", instance.Start,
		"uuid", instance.UUID)
	return nil
}
