package device

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// measureTimeout is how long a message of statistics waits for GPUs.
const measureTimeout = 2 * time.Second

// statistics collects the statistics of devices. There may be several streams at a time.
type statistics struct {
	driver    *share.Driver
	ledger    *share.Ledger
	inventory *inventory
	modes     map[claim.Mode]share.Mode
	logger    hclog.Logger
	wake      func()
	runDir    string
	log       changelog.Log

	mu sync.Mutex
	// measuring are GPUs that were queried and have not answered yet.
	measuring map[string]bool
}

// stream sends statistics until the context ends. What cannot be measured is left out of a message, because an error would
// end the statistics of all GPUs for a while.
func (s *statistics) stream(ctx context.Context, out chan<- *ndevice.StatsResponse, interval time.Duration) {
	defer close(out)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case out <- &ndevice.StatsResponse{Groups: s.collect(ctx, time.Now())}:
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

// collect returns the statistics of all devices.
func (s *statistics) collect(ctx context.Context, now time.Time) []*ndevice.DeviceGroupStats {
	usage := &share.Usage{Claims: s.claims(ctx)}
	s.measure(ctx, usage)
	byKey := make(map[share.GroupKey]*ndevice.DeviceGroupStats)
	groups := []*ndevice.DeviceGroupStats{}
	for _, g := range s.inventory.list() {
		for key, stats := range s.modes[g.Mode].Stats(&g, usage, now) {
			if group := byKey[key]; group != nil {
				maps.Copy(group.InstanceStats, stats)
				continue
			}
			group := &ndevice.DeviceGroupStats{Vendor: share.Vendor, Type: key.Type, Name: key.Name, InstanceStats: stats}
			byKey[key] = group
			groups = append(groups, group)
		}
	}
	return groups
}

// claims returns what claims use, by device ID.
func (s *statistics) claims(ctx context.Context) map[string]*share.ClaimUsage {
	claims, _, err := s.ledger.Recent(ctx)
	if err != nil && ctx.Err() == nil {
		s.logger.Debug("no statistics of claims: cannot read the ledger", "error", err)
	}
	published, err := health.Read(s.runDir)
	if s.log.Changed("health", err) && err != nil {
		s.logger.Debug("no statistics of uncounted memory", "error", err)
	}
	workloads := s.ledger.Workloads()
	turns := s.turns()
	byDevice := make(map[string]*share.ClaimUsage)
	for _, c := range claims {
		if !c.Released.IsZero() {
			continue
		}
		use := &share.ClaimUsage{Claim: c, Workload: workloads[c.ID]}
		if uncounted, ok := published.Of(c); ok {
			use.UncountedBytes = uncounted.Bytes
		}
		if usage, err := s.ledger.UsageOf(c); err == nil {
			use.UsedBytes, use.PeakBytes = usage.UsedBytes, usage.PeakBytes
			use.Refused, use.Processes = usage.Refused, len(usage.Processes)
		} else if !errors.Is(err, claim.ErrNotCounted) {
			s.logger.Debug("no statistics of a claim", "claim", c.ID, "error", err)
		}
		if had, ok := turns[c.ID]; ok {
			use.Turns = &had
		}
		for _, device := range c.Slices {
			byDevice[device] = use
		}
	}
	return byDevice
}

// measure queries the measurements of the GPUs, all at once. A GPU that does not answer in time has no statistics but
// those of its claims, and is queried again when it has answered: the others do not wait for it.
func (s *statistics) measure(ctx context.Context, usage *share.Usage) {
	gpus := s.inventory.list()
	usage.GPUs = make(map[string]share.Measurements)
	answers := make(chan map[string]share.Measurements, len(gpus))
	pending := 0
	for _, g := range gpus {
		usage.GPUs[g.UUID] = share.Measured(&nvml.Telemetry{})
		// The fingerprint loop logs GPUs that do not answer, and tries again.
		if !g.Answers || !s.begin(g.UUID) {
			continue
		}
		pending++
		go func() {
			measured := s.measureGPU(ctx, &g, usage.Claims)
			s.done(g.UUID)
			answers <- measured
		}()
	}
	timeout := time.NewTimer(measureTimeout)
	defer timeout.Stop()
	for ; pending > 0; pending-- {
		select {
		case measured := <-answers:
			maps.Copy(usage.GPUs, measured)
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// begin reports whether a GPU may be queried: it has answered the last query.
func (s *statistics) begin(uuid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.measuring == nil {
		s.measuring = make(map[string]bool)
	}
	began := !s.measuring[uuid]
	s.measuring[uuid] = true
	return began
}

func (s *statistics) done(uuid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.measuring, uuid)
}

// measureGPU queries one GPU and its MIG instances. The answers are by UUID.
func (s *statistics) measureGPU(
	ctx context.Context, g *share.GPU, byDevice map[string]*share.ClaimUsage,
) map[string]share.Measurements {
	bounded, cancel := s.driver.Limit(ctx)
	defer cancel()
	telemetry, err := s.driver.Telemetry(bounded, g.PhysicalUUID())
	if s.log.Changed(g.UUID, err) && err != nil {
		s.logger.Debug("no statistics of a GPU", "gpu", g.UUID, "error", err)
		s.wake()
	}
	if err != nil {
		return nil
	}
	if g.Origin != nil {
		return map[string]share.Measurements{g.UUID: s.measureInstance(bounded, g, g.UUID, *telemetry)}
	}
	measured := map[string]share.Measurements{g.UUID: share.Measured(telemetry)}
	if g.MIG.Enabled && s.driver.Partitioner != nil {
		for _, uuid := range measurableInstances(g, byDevice) {
			measured[uuid] = s.measureInstance(bounded, g, uuid, *telemetry)
		}
	}
	return measured
}

// measureInstance queries the memory of a MIG instance. The driver reports everything else for the whole GPU only.
func (s *statistics) measureInstance(
	ctx context.Context, g *share.GPU, uuid string, measured nvml.Telemetry,
) share.Measurements {
	measured.UsedBytes, measured.MemoryBytes, measured.BAR1UsedBytes, measured.BAR1Bytes = nil, nil, nil, nil
	memory, err := s.driver.Partitioner.InstanceMemory(ctx, uuid)
	if s.log.Changed(uuid, err) && err != nil {
		s.logger.Debug("no statistics of a MIG instance", "gpu", g.UUID, "instance", uuid, "error", err)
	}
	if err == nil {
		measured.UsedBytes, measured.MemoryBytes = memory.UsedBytes, memory.MemoryBytes
		measured.BAR1UsedBytes, measured.BAR1Bytes = memory.BAR1UsedBytes, memory.BAR1Bytes
	}
	return share.Measured(&measured)
}

// measurableInstances returns the UUIDs of a GPU's MIG instances that devices stand for. Those that several tasks share are
// measured as GPUs.
func measurableInstances(g *share.GPU, byDevice map[string]*share.ClaimUsage) []string {
	var uuids []string
	if g.Instances != nil {
		return nil
	}
	if !g.OnDemand() {
		for _, instance := range g.MIG.Instances {
			if instance.UUID != "" {
				uuids = append(uuids, instance.UUID)
			}
		}
		return uuids
	}
	seen := make(map[*share.ClaimUsage]bool)
	for _, use := range byDevice {
		if use.Mode == claim.ModeMIG && use.PhysicalGPU() == g.UUID && !use.Making() && !seen[use] {
			seen[use] = true
			uuids = append(uuids, use.GPU.UUID)
		}
	}
	return uuids
}

// turns returns what governed claims have had of their GPUs' time, by ID; nothing if no governor runs.
func (s *statistics) turns() map[string]status.Claim {
	published, err := status.Current(s.runDir, time.Now())
	if errors.Is(err, status.ErrNotRunning) {
		return nil
	}
	if s.log.Changed("turns", err) && err != nil {
		s.logger.Debug("no statistics of shares of compute", "error", err)
	}
	if err != nil {
		return nil
	}
	return published.Claims
}
