package mig

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/slice"
	"github.com/tranche-gpu/tranche/internal/changelog"
	"github.com/tranche-gpu/tranche/internal/size"
)

// OnDemand offers the memory of GPUs in slices, and creates one MIG instance for the slices that a task reserves: the
// smallest that holds them.
//
// The places of instances decide what fits beside them. So, beside the slices in use, only as many are healthy as the
// largest instance holds that can still be created: Nomad gives a task healthy slices only, and needs not know more.
type OnDemand struct {
	Driver *share.Driver
	Ledger *share.Ledger
	// Ignored are UUIDs of MIG instances that are left alone.
	Ignored map[string]bool
	// MaxSlices is the most that one reservation may have; 0 is no limit.
	MaxSlices int
	Logger    hclog.Logger
	// Wake has the GPUs looked at again.
	Wake func()

	log changelog.Log

	mu sync.Mutex
	// locks hold a token each while the instances of their GPU are changed.
	locks      map[string]chan struct{}
	capacities map[string]*capacity
	// dormant are the dormant claims that were seen last, by GPU and ID.
	dormant map[string]map[string]sighting
}

// lock waits until nothing else changes a GPU's instances, and returns a function that unlocks it.
func (m *OnDemand) lock(ctx context.Context, uuid string) (unlock func(), err error) {
	m.mu.Lock()
	if m.locks == nil {
		m.locks = make(map[string]chan struct{})
	}
	if m.locks[uuid] == nil {
		m.locks[uuid] = make(chan struct{}, 1)
	}
	lock := m.locks[uuid]
	m.mu.Unlock()
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("another reservation on the GPU %s is not done yet: %w", uuid, ctx.Err())
	}
}

// capacity returns what was last found for a GPU.
func (m *OnDemand) capacity(uuid string) *capacity {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.capacities[uuid]; c != nil {
		return c
	}
	return &capacity{unknown: "the GPU was not queried yet"}
}

func (m *OnDemand) setCapacity(uuid string, c *capacity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.capacities == nil {
		m.capacities = make(map[string]*capacity)
	}
	m.capacities[uuid] = c
}

// setUnknown records why nothing could be found for a GPU. What was found before stays: that a GPU does not answer is a
// problem of its own.
func (m *OnDemand) setUnknown(uuid string, reason error) {
	if m.capacity(uuid).unknown != "" {
		m.setCapacity(uuid, &capacity{unknown: reason.Error()})
	}
}

// Sizes queries GPUs with unknown sizes for the instances that they can have. Most drivers answer only while MIG is on.
func (m *OnDemand) Sizes(ctx context.Context, gpus []share.GPU) map[string][]mig.Profile {
	learned := make(map[string][]mig.Profile)
	for _, g := range gpus {
		if !g.OnDemand() || !g.Answers || !g.MIG.Enabled || len(g.Sizes) > 0 {
			continue
		}
		sizes, err := m.Driver.Partitioner.MIGProfiles(ctx, g.UUID)
		if m.log.Changed("profiles of "+g.UUID, err) && err != nil {
			m.Logger.Error("cannot list the MIG profiles of a GPU", "gpu", g.UUID, "name", g.GroupName(), "error", err)
		}
		if err == nil && len(sizes) > 0 {
			learned[g.UUID] = mig.Plain(sizes)
		}
	}
	return learned
}

func (m *OnDemand) groups(g *share.GPU, o *share.Occupancy) []*ndevice.DeviceGroup {
	group := slice.Group(g, o, share.IsolationHardware)
	if g.Problem == "" {
		m.capacity(g.UUID).mark(g, group.Devices)
	}
	return []*ndevice.DeviceGroup{group}
}

// problem returns why no instance can be created on a GPU.
func (m *OnDemand) problem(g *share.GPU) string {
	switch {
	case !g.MIG.Capable:
		return "the GPU has no MIG: share it in another mode"
	case !g.MIG.Enabled && g.Waits != "":
		return "MIG is not on: " + g.Waits
	case !g.MIG.Enabled:
		return "MIG is not on"
	case len(g.Sizes) == 0:
		return "the driver does not list which MIG instances the GPU can have"
	}
	if err := checkSlice(&g.Policy, mig.Largest(nil, g.Sizes)); err != nil {
		return err.Error()
	}
	return ""
}

// checkSlice returns an error if the largest instance is smaller than a slice.
func checkSlice(p *share.Policy, largestBytes uint64) error {
	if largestBytes >= p.SliceBytes {
		return nil
	}
	return fmt.Errorf("slice_memory is %s, but the largest MIG instance of the GPU has only %s: set it to less",
		size.Format(p.SliceBytes), size.Format(largestBytes))
}

func (m *OnDemand) stats(g *share.GPU, u *share.Usage, now time.Time) map[share.GroupKey]share.DeviceStats {
	return slice.StatsBy(g, u, now, func(id string, first bool, use *share.ClaimUsage) *ndevice.DeviceStats {
		return claimed(u.Instance(use.GPU.UUID, g.UUID), id, first, use, now)
	})
}

// claimed returns the statistics of a slice that a claim uses, which are those of the claim's instance.
func claimed(
	measured share.Measurements, id string, first bool, use *share.ClaimUsage, now time.Time,
) *ndevice.DeviceStats {
	memory := *measured["Memory state"]
	memory.Desc = "Memory in use of the claim's MIG instance, of all it has"
	summary := use.Part(id, &memory)
	summary.Desc = "This slice's equal part of the memory in use of the claim's MIG instance, of all it has"
	stats := measured.For(id, first, use)
	stats.AddClaim(use)
	if use.First(id) {
		stats.AddWorkload(use)
		stats["Claim slices"] = share.Count(uint64(len(use.Slices)), "Slices of the claim")
		stats["Claim memory"] = &memory
	}
	return stats.WithSummary(summary, now)
}
