package monitor

import (
	"cmp"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/usage"
)

// Source is something that a snapshot is read from.
type Source string

// The sources.
const (
	SourceNVML     Source = "nvml"
	SourceLedger   Source = "ledger"
	SourceLayout   Source = "layout"   // how the device plugin shares the GPUs
	SourceHealth   Source = "health"   // which GPUs it takes to be unhealthy
	SourceIdle     Source = "idle"     // which claims the agent takes to be idle for too long
	SourceGovernor Source = "governor" // what claims have had of their GPUs' time; read only where one that runs is governed
)

// Sources are all of them.
var Sources = []Source{SourceNVML, SourceLedger, SourceLayout, SourceHealth, SourceIdle, SourceGovernor}

// Snapshot is the state of a node at one time. A pointer is nil where its value is unknown.
type Snapshot struct {
	Time                       time.Time
	DriverVersion, CUDAVersion string
	// Errors say why a source could not be read.
	Errors map[Source]string
	// GPUs are in the order of their indices, and Claims in that of their GPUs and slices.
	GPUs   []GPU
	Claims []*Claim
	// Problems are files in the ledger that are not readable claims.
	Problems []claim.Problem
	// Usage is what is accounted of the claims; nil if nothing is yet. Callers must not modify it.
	Usage *usage.Totals
	// PolicyActions counts what the idle policy did since the agent started.
	PolicyActions map[PolicyAction]uint64
}

// GPU is a GPU, and what it measures.
type GPU struct {
	Index      int
	UUID, Name string
	Mode       claim.Mode
	// Error says why the GPU does not answer; empty if it does.
	Error string
	// Unhealthy is what the device plugin found wrong with it; nil if nothing.
	Unhealthy *health.Condition

	// MemoryBytes is all memory, DriverBytes the part that the driver reserves for itself. UsedBytes is in use by all processes
	// and the driver.
	MemoryBytes, DriverBytes, UsedBytes *uint64
	// OutsideBytes is the memory that processes without a claim use.
	OutsideBytes *uint64
	// Parent is the UUID of the GPU that a MIG instance is of, and WholeBytes all memory of that; empty for a GPU.
	Parent     string
	WholeBytes uint64
	// Telemetry is empty if the GPU does not answer, and has only GPUPercent where nothing is measured.
	nvml.Telemetry
	// SliceBytes is the memory of a slice, or of an instance that is created for one in mode mig; 0 if there are none.
	SliceBytes uint64
	// Slices are the counts of slices; nil in modes without slices.
	Slices *Slices
	// Xids counts Xid errors since the monitor began, by their number.
	Xids map[uint64]uint64
}

// Slices counts a GPU's slices, each in one of the states.
type Slices struct {
	SliceBytes uint64
	// Total is unknown where the GPU does not answer.
	Total *int
	// Running and Reserved belong to claims with and without a container; Dormant to claims that yield to everybody.
	Running, Reserved, Dormant int
	// Outside have no memory left, which processes without a claim use. Unhealthy are the others of an unhealthy GPU.
	Outside, Unhealthy int
	Free               int
}

// Available is how many slices of the GPU a new claim can get: dormant claims yield, but nothing is given away of a GPU that is
// unhealthy or does not answer.
func (g *GPU) Available() int {
	if g.Slices == nil || g.Unhealthy != nil || g.Error != "" {
		return 0
	}
	return g.Slices.Free + g.Slices.Dormant
}

// UsableBytes is the memory that processes can allocate; 0 if unknown.
func (g *GPU) UsableBytes() uint64 {
	if g.MemoryBytes == nil {
		return 0
	}
	return *g.MemoryBytes - min(*g.DriverBytes, *g.MemoryBytes)
}

// Claim is a claim, and what its container uses.
type Claim struct {
	*claim.Claim
	// Workload is what the claim is for; zero if unknown. Its names are of any characters.
	Workload claim.Workload
	State    claim.State
	// GPUIndex is the index of the GPU that the claim, or its MIG instance, is on; -1 if unknown.
	GPUIndex int
	// Usage is what the container's processes count; nil if that cannot be read, as UsageError says, or nobody counts it.
	Usage      *region.Usage
	UsageError string
	// Uncounted is memory of the container that the claim's region does not count; nil if none is seen.
	Uncounted *health.Condition
	// Turns is what a governed claim has had of its GPU's time; nil if no governor says it.
	Turns *status.Claim
	// Utilization is the share of time in which the claim's processes had the GPU's multiprocessors busy, 0 to 1.
	Utilization *float64
	// activity is how busy its container had any part of the GPU; nil if that is unknown.
	activity *float64
	// Idleness is zero unless the claim runs.
	Idleness Idleness
	// IdleTooLong is what the idle policy says of it; nil if nothing.
	IdleTooLong *idle.Condition
}

// Status is the claim's state, or what an operator is to look at first of a claim that runs.
func (c *Claim) Status() string {
	switch {
	case c.Uncounted != nil:
		return "uncounted"
	case c.IdleTooLong != nil && c.IdleTooLong.State != idle.Observed:
		return string(c.IdleTooLong.State)
	case c.Idleness.Is():
		return "idle"
	}
	return string(c.State)
}

// PeakBytes returns the most memory that the claim's container has counted, or its last one; nil if that is not known.
func (c *Claim) PeakBytes() *uint64 {
	switch {
	case c.Usage != nil:
		return &c.Usage.PeakBytes
	case c.Workload.PeakBytes > 0:
		return &c.Workload.PeakBytes
	}
	return nil
}

// UnusedGiBHours returns the memory that a claim reserved and did not use times the hours, in the last day; nil if that is not known.
func (s *Snapshot) UnusedGiBHours(c *Claim) *float64 {
	if s.Usage == nil {
		return nil
	}
	hours, known := s.Usage.UnusedGiBHours[c.ID]
	if !known {
		return nil
	}
	return &hours
}

// CompareUnused orders claims by their unused memory of the last day, the most first and those of which it is not known last.
func (s *Snapshot) CompareUnused(a, b *Claim) int {
	unused := func(c *Claim) float64 {
		if hours := s.UnusedGiBHours(c); hours != nil {
			return *hours
		}
		return -1
	}
	return cmp.Compare(unused(b), unused(a))
}

// Sliced reports whether the claim has slices, rather than a GPU, a share of its time, or a MIG instance.
func (c *Claim) Sliced() bool { return c.Mode.Sliced() }

// GPU returns the GPU with a UUID, or nil. Those that have never answered have none.
func (s *Snapshot) GPU(uuid string) *GPU {
	for i := range s.GPUs {
		if uuid != "" && s.GPUs[i].UUID == uuid {
			return &s.GPUs[i]
		}
	}
	return nil
}

// On returns the claims on a GPU.
func (s *Snapshot) On(uuid string) []*Claim {
	var on []*Claim
	for _, c := range s.Claims {
		if c.PhysicalGPU() == uuid {
			on = append(on, c)
		}
	}
	return on
}

// within returns the claims on a GPU, and those on MIG instances of it that are shared like GPUs.
func (s *Snapshot) within(uuid string) []*Claim {
	all := s.On(uuid)
	for i := range s.GPUs {
		if s.GPUs[i].Parent == uuid {
			all = append(all, s.On(s.GPUs[i].UUID)...)
		}
	}
	return all
}

// ReservedBytes is the memory that the limits of the claims on a GPU reserve; dormant claims reserve none. Claims without a
// limit have the memory of their GPU or MIG instance.
func (s *Snapshot) ReservedBytes(uuid string) uint64 {
	var bytes uint64
	for _, c := range s.On(uuid) {
		switch {
		case !c.Holds():
		case c.Mode == claim.ModeTimeslice: // each has all of it
			bytes = max(bytes, c.LimitBytes)
		default:
			bytes += c.LimitBytes
		}
	}
	return bytes
}

// Holds reports whether the claim keeps its slices from others.
func (c *Claim) Holds() bool { return c.State == claim.StateRunning || c.State == claim.StateReserved }
