package monitor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
		g.Error = err.Error()
		return
	}
	g.Telemetry = *telemetry
	running, err := m.NVML.Processes(ctx, g.UUID)
	if err != nil {
		return // who uses the memory is unknown
	}
	owners := ownersOn(s.On(g.UUID), running)
	g.OutsideBytes = outside(running, owners, g.Mode)
	since := m.busy.since(g.UUID, s.Time)
	ratios, err := m.NVML.ProcessUtilization(ctx, g.UUID, since)
	if err != nil || ratios == nil {
		return
	}
	m.busy.observed(g.UUID, s.Time)
	for _, c := range s.On(g.UUID) {
		if c.State == claim.StateRunning {
			c.Utilization = utilization(c, ratios, owners)
		}
	}
}

// owner is to whom a process on a GPU belongs.
type owner struct {
	kind   processes.Kind
	claims []*claim.Claim
}

// ownersOn finds out to whom processes belong, by their IDs.
func ownersOn(claims []*Claim, running []nvml.Process) map[int]owner {
	if len(running) == 0 {
		return nil // /proc need not be read
	}
	var alive []*claim.Claim
	for _, c := range claims {
		if c.State == claim.StateRunning {
			alive = append(alive, c.Claim)
		}
	}
	containers := processes.Of(alive)
	owners := make(map[int]owner, len(running))
	for _, p := range running {
		found := owner{claims: containers.Claims(p.PID)}
		if len(found.claims) == 0 {
			found.kind = containers.Kind(p.PID)
		} else {
			found.kind = processes.Claimed
		}
		owners[p.PID] = found
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

// utilization sums up how busy the processes of a claim had the GPU. A container that has several claims on a GPU has all its
// processes in each: they count for the first.
func utilization(c *Claim, ratios map[int]float64, owners map[int]owner) *float64 {
	var sum float64
	for pid, ratio := range ratios {
		if of := owners[pid].claims; len(of) > 0 && of[0].ID == c.ID {
			sum += ratio
		}
	}
	sum = min(1, sum)
	return &sum
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
