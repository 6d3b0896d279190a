package device

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// stats sends statistics until the context ends. What can't be found out is
// left out of a message: an error would end the statistics of all GPUs for a
// while.
func (n *node) stats(ctx context.Context, out chan<- *ndevice.StatsResponse, interval time.Duration) {
	defer close(out)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case out <- &ndevice.StatsResponse{Groups: n.collect(ctx, time.Now())}:
		case <-ctx.Done():
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// collect makes the statistics of all devices.
func (n *node) collect(ctx context.Context, now time.Time) []*ndevice.DeviceGroupStats {
	uses := n.uses(ctx)
	n.measure(ctx, uses)
	byKey := make(map[groupKey]*ndevice.DeviceGroupStats)
	groups := []*ndevice.DeviceGroupStats{}
	for _, g := range n.inventory.list() {
		for key, stats := range n.modes[g.mode].stats(&g, uses, now) {
			if group := byKey[key]; group != nil {
				maps.Copy(group.InstanceStats, stats)
				continue
			}
			group := &ndevice.DeviceGroupStats{Vendor: vendor, Type: key.kind, Name: key.name, InstanceStats: stats}
			byKey[key] = group
			groups = append(groups, group)
		}
	}
	return groups
}

// uses is what is in use of the node: by claims, by device, and of GPUs, by UUID.
type uses struct {
	byDevice map[string]*claimUse
	gpus     map[string]measurements
}

// measureWithin is how long a message of statistics waits for GPUs.
const measureWithin = 2 * time.Second

// measuring are the GPUs that were asked what they measure and have not answered
// yet. Its zero value is ready.
type measuring struct {
	mu   sync.Mutex
	gpus map[string]bool
}

// begin is false if the GPU has not answered yet.
func (m *measuring) begin(uuid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gpus == nil {
		m.gpus = make(map[string]bool)
	}
	began := !m.gpus[uuid]
	m.gpus[uuid] = true
	return began
}

func (m *measuring) done(uuid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.gpus, uuid)
}

// measure asks the GPUs what they measure of themselves, all at once. One that
// does not tell in time has no statistics but those of its claims, and is asked
// again when it has answered: the others do not wait for it.
func (n *node) measure(ctx context.Context, uses *uses) {
	gpus := n.inventory.list()
	uses.gpus = make(map[string]measurements)
	answers := make(chan map[string]measurements, len(gpus))
	asked := 0
	for _, g := range gpus {
		uses.gpus[g.UUID] = gpuStatistics(&nvml.Telemetry{})
		// What does not answer is left to the fingerprint: it says so, and looks again.
		if !g.answers || !n.measuring.begin(g.UUID) {
			continue
		}
		asked++
		go func() {
			measured := n.measureGPU(ctx, &g, uses.byDevice)
			n.measuring.done(g.UUID)
			answers <- measured
		}()
	}
	enough := time.NewTimer(measureWithin)
	defer enough.Stop()
	for ; asked > 0; asked-- {
		select {
		case measured := <-answers:
			maps.Copy(uses.gpus, measured)
		case <-enough.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// measureGPU asks one GPU, and what it has of MIG instances. The answers are by
// UUID.
func (n *node) measureGPU(ctx context.Context, g *gpu, byDevice map[string]*claimUse) map[string]measurements {
	bounded, cancel := context.WithTimeout(ctx, n.nvmlTimeout)
	defer cancel()
	telemetry, err := n.nvml.Telemetry(bounded, g.UUID)
	if n.reported.changed("telemetry of "+g.UUID, err) && err != nil {
		n.logger.Debug("no statistics of a GPU", "gpu", g.UUID, "error", err)
		n.wake()
	}
	if err != nil {
		return nil
	}
	measured := map[string]measurements{g.UUID: gpuStatistics(telemetry)}
	n.measureInstances(bounded, g, telemetry, byDevice, measured)
	return measured
}

// claimUse is a claim and what it uses.
type claimUse struct {
	*claim.Claim
	usedBytes, peakBytes uint64
	refused              uint64
	processes            int
}

// uses finds what claims use.
func (n *node) uses(ctx context.Context) *uses {
	claims, _, err := n.ledger.Recent(ctx)
	if err != nil && ctx.Err() == nil {
		n.logger.Debug("no statistics of claims: could not read the ledger", "error", err)
	}
	found := &uses{byDevice: make(map[string]*claimUse)}
	for _, c := range claims {
		if !c.Released.IsZero() {
			continue
		}
		use := &claimUse{Claim: c}
		if usage, err := n.ledger.UsageOf(c); err == nil {
			use.usedBytes, use.peakBytes = usage.UsedBytes, usage.PeakBytes
			use.refused, use.processes = usage.Refused, len(usage.Processes)
		} else if !errors.Is(err, claim.ErrNotCounted) {
			n.logger.Debug("no statistics of a claim", "claim", c.ID, "error", err)
		}
		for _, device := range c.Slices {
			found.byDevice[device] = use
		}
	}
	return found
}

// measurements are what a GPU measures of itself, as statistics.
type measurements map[string]*structs.StatValue

// on are those for one of many devices of a GPU. A node may have a thousand, and
// says all this once a second; so the GPU's first device has them, that they can
// be looked up, and the first of each claim, for whoever has the claim.
func (m measurements) on(device string, first bool, use *claimUse) measurements {
	if first || use.leads(device) {
		return maps.Clone(m)
	}
	return make(measurements)
}

// leads tells whether a device is the first of a claim's.
func (u *claimUse) leads(device string) bool { return u != nil && device == u.Slices[0] }

// sliceStatistics are those of a GPU's slices whose claims have a limit.
func sliceStatistics(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats {
	return claimStatistics(g, uses, now, func(id string, first bool, use *claimUse) *ndevice.DeviceStats {
		return sliceStats(uses.gpus[g.UUID].on(id, first, use), id, use, now)
	})
}

// claimStatistics are those of a GPU's slices, claimed being those of one that a
// claim has. There is something for each of them: Nomad's commands do not expect
// that there is nothing.
func claimStatistics(
	g *gpu, uses *uses, now time.Time, claimed func(id string, first bool, use *claimUse) *ndevice.DeviceStats,
) map[groupKey]deviceStats {
	all := make(deviceStats, g.slices)
	summary := mebibytes(0, g.sliceBytes, "No claim has this slice")
	free := make(measurements).withSummary(summary, now)
	for number := range g.slices {
		id := g.sliceID(number)
		switch use := uses.byDevice[id]; {
		case use != nil:
			all[id] = claimed(id, number == 0, use)
		case number == 0:
			all[id] = uses.gpus[g.UUID].withSummary(summary, now)
		default:
			all[id] = free
		}
	}
	return map[groupKey]deviceStats{{sliceType, g.groupName()}: all}
}

// sliceStats are the statistics of a slice that a claim has. Memory is not bound
// to one of its slices: the summary of each is the claim's, and the first has the
// rest.
func sliceStats(stats measurements, id string, use *claimUse, now time.Time) *ndevice.DeviceStats {
	summary := mebibytes(use.usedBytes, use.LimitBytes, "Memory in use by the claim on this slice, of its limit")
	stats.addClaim(use)
	if use.leads(id) {
		stats["Claim slices"] = count(uint64(len(use.Slices)), "Slices of the claim")
		stats["Claim memory"] = summary
		stats["Claim peak memory"] = mebibytes(use.peakBytes, use.LimitBytes, "Most memory that the claim had in use, of its limit")
		stats["Claim processes"] = count(uint64(use.processes), "Processes of the claim that hold memory")
		stats["Claim refused allocations"] = count(use.refused, "Allocations that the claim's limit refused")
	}
	return stats.withSummary(summary, now)
}

// gpuStats are the statistics of a GPU or an instance, which nobody has a limit
// on.
func gpuStats(measured measurements, use *claimUse, now time.Time) *ndevice.DeviceStats {
	return measured.ofShare("", true, use, now)
}

// ofShare are the statistics of one of a GPU's shares.
func (m measurements) ofShare(id string, first bool, use *claimUse, now time.Time) *ndevice.DeviceStats {
	stats := m.on(id, first, use)
	if use != nil {
		stats.addClaim(use)
	}
	return stats.withSummary(m["Memory state"], now)
}

func (m measurements) withSummary(summary *structs.StatValue, now time.Time) *ndevice.DeviceStats {
	return &ndevice.DeviceStats{Summary: summary, Stats: &structs.StatObject{Attributes: m}, Timestamp: now}
}

func (m measurements) addClaim(use *claimUse) {
	id := use.ID
	m["Claim"] = &structs.StatValue{StringVal: &id, Desc: "Claim that has this device"}
}

func count(value uint64, description string) *structs.StatValue {
	n := int64(value)
	return &structs.StatValue{IntNumeratorVal: &n, Desc: description}
}

func mebibytes(part, whole uint64, description string) *structs.StatValue {
	n, of := int64(part>>20), int64(whole>>20)
	return &structs.StatValue{IntNumeratorVal: &n, IntDenominatorVal: &of, Unit: structs.UnitMiB, Desc: description}
}
