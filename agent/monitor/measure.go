package monitor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/processes"
)

// addMeasurements adds what the GPUs measure, all at once. A GPU that does not answer in time has none: the others do not wait
// for it longer than the context allows.
func (m *Monitor) addMeasurements(ctx context.Context, s *Snapshot) {
	var waiting sync.WaitGroup
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.Error != "" {
			continue
		}
		waiting.Go(func() { m.measure(ctx, s, g) })
	}
	waiting.Wait()
	m.busy.forget(s)
}

// measure adds what a GPU measures, and which of its processes belong to which claims.
func (m *Monitor) measure(ctx context.Context, s *Snapshot, g *GPU) {
	telemetry, err := m.NVML.Telemetry(ctx, g.UUID)
	if err != nil {
		g.Error, g.Telemetry = err.Error(), nvml.Telemetry{}
		return
	}
	g.Telemetry = *telemetry
	running, err := m.NVML.Processes(ctx, g.UUID)
	if err != nil {
		return // who uses the memory is unknown
	}
	since := m.busy.since(g.UUID, s.Time)
	busy, err := m.NVML.ProcessUtilization(ctx, g.UUID, since)
	if err != nil {
		busy = nil // unknown
	}
	owners := ownersOn(s.within(g.UUID), running, busy) // NVML lists the processes of instances for their GPU, too
	g.OutsideBytes = outside(running, owners, g.Mode)
	if busy == nil {
		return
	}
	m.busy.observed(g.UUID, s.Time)
	for _, c := range s.On(g.UUID) {
		if c.State == claim.StateRunning {
			c.measureBusy(busy, owners)
		}
	}
}

// AddOutside adds to what Read returned the memory that processes without a claim use: without it more slices seem to be free
// than are. A GPU that does not answer in time has none.
func (m *Monitor) AddOutside(ctx context.Context, s *Snapshot, patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.Error != "" || ctx.Err() != nil {
			continue
		}
		if running, err := m.NVML.Processes(ctx, g.UUID); err == nil {
			g.OutsideBytes = outside(running, ownersOn(s.within(g.UUID), running, nil), g.Mode)
			g.countFree()
		}
	}
}

// owner is to whom a process on a GPU belongs.
type owner struct {
	kind   processes.Kind
	claims []*claim.Claim
}

// ownersOn finds out to whom processes belong, by their IDs: those that compute, and those that only render or transcode, which
// NVML does not list among them. Those of commands under `tranche run`, which have no claim in the ledger, belong to nobody.
func ownersOn(claims []*Claim, running []nvml.Process, busy map[int]nvml.Busy) map[int]owner {
	pids := slices.Collect(maps.Keys(busy))
	for _, p := range running {
		pids = append(pids, p.PID)
	}
	if len(pids) == 0 {
		return nil // /proc need not be read
	}
	var alive []*claim.Claim
	for _, c := range claims {
		if c.State == claim.StateRunning && c.Owner != claim.OwnerRun {
			alive = append(alive, c.Claim)
		}
	}
	containers := processes.Of(alive)
	owners := make(map[int]owner, len(pids))
	for _, pid := range pids {
		if _, known := owners[pid]; known {
			continue
		}
		var found owner
		found.kind, found.claims = containers.Owner(pid)
		owners[pid] = found
	}
	return owners
}

// outside sums up the memory of processes without a claim; nil if the driver does not report the memory of one of them. The
// server of MPS holds the memory of its clients, which have claims.
func outside(running []nvml.Process, owners map[int]owner, mode claim.Mode) *uint64 {
	var bytes uint64
	for _, p := range running {
		if owners[p.PID].kind != processes.Unmanaged || mode == claim.ModeMPS && isMPSServer(p.PID) {
			continue
		}
		if !p.UsedKnown {
			return nil
		}
		bytes += p.UsedBytes
	}
	return &bytes
}

// isMPSServer reports whether a process is a server of MPS, by its program.
func isMPSServer(pid int) bool {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && filepath.Base(program) == "nvidia-cuda-mps-server"
}

// measureBusy sums up how busy the processes of a claim's container had the GPU. A container that has several claims on a GPU has
// all its processes in each: their utilization counts for the first, and all of the claims are active.
func (c *Claim) measureBusy(busy map[int]nvml.Busy, owners map[int]owner) {
	var utilization, activity float64
	var server bool
	for pid, b := range busy {
		of := owners[pid].claims
		if len(of) > 0 && of[0].ID == c.ID {
			utilization += b.Multiprocessors
		}
		if slices.ContainsFunc(of, func(o *claim.Claim) bool { return o.ID == c.ID }) {
			activity += b.Greatest
		}
		server = server || c.Mode == claim.ModeMPS && b.Greatest > idleRatio && isMPSServer(pid)
	}
	utilization = min(1, utilization)
	c.Utilization = &utilization
	if !server { // of the clients of a busy server, any may be the one
		c.activity = &activity
	}
}

// busyness knows until when the utilization of each GPU was observed.
type busyness struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// since returns from when on utilization is to be requested.
func (b *busyness) since(uuid string, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until, ok := b.until[uuid]; ok {
		return until
	}
	return now.Add(-samplePeriod)
}

func (b *busyness) observed(uuid string, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until == nil {
		b.until = make(map[string]time.Time)
	}
	b.until[uuid] = until
}

// forget removes GPUs that are gone.
func (b *busyness) forget(s *Snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uuid := range b.until {
		if s.GPU(uuid) == nil {
			delete(b.until, uuid)
		}
	}
}
