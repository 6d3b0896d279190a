// Package agenttest has the snapshot of a node on which everything occurs, for tests of what shows it.
package agenttest

import (
	"fmt"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/usage"
)

// Hostile is a name that no program may take for markup, a new line, or an order to a terminal.
const Hostile = "</title><script>alert(1)</script>\"'&\n\x1b[2J\u202e=cmd|'x'!A0"

// Time is when the snapshot was taken.
var Time = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

const gib = 1 << 30

// UUID is that of the GPU with an index.
func UUID(index int) string { return fmt.Sprintf("GPU-%08d-1111-2222-3333-444444444444", index) }

// Snapshot returns a node with four GPUs: one with claims in all states, an unhealthy one, one that does not answer, and one
// that is shared by time. Names of others are hostile.
func Snapshot() *monitor.Snapshot {
	s := &monitor.Snapshot{
		Time: Time, DriverVersion: "570.124.06", CUDAVersion: "12.8",
		Errors: map[monitor.Source]string{monitor.SourceLayout: "layout " + Hostile},
		GPUs: []monitor.GPU{
			measured(0, claim.ModeSlice), measured(1, claim.ModeSlice),
			{Index: 2, UUID: UUID(2), Mode: claim.ModeSlice, Error: "it fell " + Hostile, Slices: &monitor.Slices{SliceBytes: gib}},
			measured(3, claim.ModeTimeslice),
		},
		Problems: []claim.Problem{{Path: "/var/lib/tranche/claims/" + Hostile, Reason: "no claim"}},
	}
	total := 140
	s.GPUs[0].Slices = &monitor.Slices{SliceBytes: gib, Total: &total, Running: 48, Reserved: 8, Dormant: 16, Outside: 4, Free: 64}
	s.GPUs[0].Xids = map[uint64]uint64{13: 2}
	s.GPUs[1].Unhealthy = &health.Condition{Problem: "Xid 79 " + Hostile, Since: Time.Add(-time.Hour)}
	s.GPUs[1].Slices = &monitor.Slices{SliceBytes: gib, Total: &total, Unhealthy: 140}
	s.Claims = []*monitor.Claim{
		train(), with("bbbbbbbb", claim.StateRunning, 16, nil), with("cccccccc", claim.StateReserved, 8, nil),
		with("dddddddd", claim.StateDormant, 16, nil), shared(),
	}
	s.Claims[1].Workload = claim.Workload{
		Namespace: Hostile, Job: Hostile, Group: Hostile, Task: Hostile, Allocation: Hostile, ContainerName: Hostile,
	}
	s.Claims[1].UsageError = "usage " + Hostile
	idleFor(s.Claims[1], idle.Condition{State: idle.Held, Note: "not now " + Hostile})
	s.Claims[2].Workload = claim.Workload{ContainerName: "notebook"}
	s.Claims[3].Workload = claim.Workload{PeakBytes: 11 * gib}
	s.PolicyActions = map[monitor.PolicyAction]uint64{{Namespace: "research", Action: "warned"}: 2, {Namespace: "research", Action: "failed"}: 1}
	s.Usage = &usage.Totals{Seen: Time.Add(-time.Minute), Claims: map[string]usage.Total{
		"aaaaaaaa": {Millis: 7_200_500, GiBMillis: 32 * 7_200_500, GPUMillis: 1_645_828},
		"eeeeeeee": {Millis: 60_000},
	}, UnusedGiBHours: map[string]float64{"aaaaaaaa": 22.5, "bbbbbbbb": 31.25}}
	return s
}

func measured(index int, mode claim.Mode) monitor.GPU {
	var memory, driver, used, outside uint64 = 140 * gib, gib / 2, 40 * gib, 4 * gib
	power, limit, energy, celsius, percent := int64(345_000), int64(700_000), int64(7_200_000), int64(61), int64(37)
	return monitor.GPU{
		Index: index, UUID: UUID(index), Name: "NVIDIA H200", Mode: mode,
		MemoryBytes: &memory, DriverBytes: &driver, UsedBytes: &used, OutsideBytes: &outside,
		Telemetry: nvml.Telemetry{
			PowerMilliwatts: &power, PowerLimitMilliwatts: &limit, EnergyMillijoules: &energy, TemperatureCelsius: &celsius,
			GPUPercent: &percent, MemoryPercent: &percent, EncoderPercent: &percent, DecoderPercent: &percent,
		},
	}
}

// with returns a claim of slices on the first GPU.
func with(id string, state claim.State, slices int, use *region.Usage) *monitor.Claim {
	c := &claim.Claim{
		ID: id, GPU: claim.GPU{UUID: UUID(0), Name: "NVIDIA H200"}, SliceBytes: gib, LimitBytes: uint64(slices) * gib,
		Owner: claim.OwnerNomad, Mode: claim.ModeSlice, Created: Time.Add(-2 * time.Hour),
	}
	for i := range slices {
		c.Slices = append(c.Slices, fmt.Sprintf("%s/slice-%s-%03d", UUID(0), id, i))
	}
	return &monitor.Claim{Claim: c, State: state, Usage: use}
}

// train is a claim of which everything is known.
func train() *monitor.Claim {
	c := with("aaaaaaaa", claim.StateRunning, 32, &region.Usage{
		LimitBytes: 32 * gib, UsedBytes: 20 * gib, PeakBytes: 24 * gib, Refused: 7, Processes: make([]region.Process, 2),
		Spill: &region.Spill{LimitBytes: 4 * gib, UsedBytes: gib},
	})
	c.Container = &claim.Container{Runtime: "containerd", ID: "alloc-1"}
	c.Workload = claim.Workload{
		Namespace: "research", Job: "train", Group: "gpu", Task: "trainer",
		Allocation: "3f2a91b0-0000-4000-8000-000000000001", Verified: true,
	}
	busy := 0.25
	c.Utilization = &busy
	var idle time.Duration
	c.Idleness = monitor.Idleness{Activity: monitor.ActivityActive, LastActive: Time, Idle: &idle}
	c.Compute = &claim.Compute{Share: 300, Max: 500, Class: claim.ClassHigh}
	c.Turns = &status.Claim{
		GPUUUID: UUID(0), Compute: *c.Compute, GPUSeconds: 12.5, RecentPart: 0.31, WaitingSeconds: 3.25, Overruns: 2,
		Joined: []status.Process{{PID: 4711, Name: "python3"}}, NotJoined: []status.Process{{PID: 4712, Name: Hostile}},
	}
	c.Uncounted = &health.Condition{Problem: "2 GiB " + Hostile, Since: Time, Bytes: 2 * gib}
	return c
}

// shared is a claim without a limit.
func shared() *monitor.Claim {
	c := with("eeeeeeee", claim.StateRunning, 1, nil)
	c.GPU.UUID, c.GPU.Index, c.GPUIndex = UUID(3), 3, 3
	c.Mode, c.Unlimited, c.LimitBytes, c.SliceBytes = claim.ModeTimeslice, true, 140*gib, 0
	c.Owner = claim.OwnerExternal
	c.Compute = &claim.Compute{Share: 333, Max: claim.WholeCompute, Class: claim.ClassNormal} // no governor says what it has had
	stop := Time.Add(15 * time.Minute)
	idleFor(c, idle.Condition{State: idle.Warned, StopAt: &stop})
	return c
}

// idleFor makes a claim idle that was active an hour ago.
func idleFor(c *monitor.Claim, tooLong idle.Condition) {
	hour := time.Hour
	tooLong.Since = Time.Add(-hour)
	c.Idleness = monitor.Idleness{Activity: monitor.ActivityIdleWithMemory, LastActive: tooLong.Since, Idle: &hour}
	c.IdleTooLong = &tooLong
}
