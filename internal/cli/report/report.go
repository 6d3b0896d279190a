// Package report says what there is on a node, as `tranche status` and `tranche claim list` print it: for people and for programs. It
// reads what a monitor knows and changes nothing.
package report

import (
	"cmp"
	"fmt"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/governor/status"
)

// Report is what `tranche status --json` prints. Programs rely on its names.
type Report struct {
	DriverVersion string `json:"driver_version,omitempty"`
	CUDAVersion   string `json:"cuda_version,omitempty"`
	// NVMLError says why nothing is known from NVML; the GPUs are then those that the claims name.
	NVMLError string `json:"nvml_error,omitempty"`
	// LedgerError says why nothing is known from the ledger.
	LedgerError string `json:"ledger_error,omitempty"`
	// LayoutError says why it is not known how the device plugin shares the GPUs.
	LayoutError string `json:"layout_error,omitempty"`
	// HealthError says why it is not known which GPUs the device plugin takes to be unhealthy.
	HealthError string `json:"health_error,omitempty"`
	// GovernorError says why it is not known what the governed claims have had of their GPUs' time.
	GovernorError string          `json:"governor_error,omitempty"`
	GPUs          []GPU           `json:"gpus"`
	Claims        []Claim         `json:"claims"`
	Problems      []claim.Problem `json:"problems"`
}

// GPU is a GPU of the node, or one that only claims name.
type GPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid,omitempty"`
	Name  string `json:"name,omitempty"`
	// Mode is how the GPU is shared: as the device plugin says, else as the claims on it do.
	Mode claim.Mode `json:"mode"`
	// Error says why the GPU does not answer.
	Error string `json:"error,omitempty"`
	// Unhealthy is what makes the GPU unhealthy, as the device plugin says; nil if nothing does.
	Unhealthy          *health.Condition `json:"unhealthy,omitempty"`
	MemoryBytes        uint64            `json:"memory_bytes,omitempty"`
	UsedBytes          uint64            `json:"used_bytes"`
	UtilizationPercent int               `json:"utilization_percent"` // -1: not known
	Slices             Slices            `json:"slices"`
}

// Slices counts the slices of a GPU. Total and Free are 0 where NVML does not say how large the GPU is. In a mode
// without slices all are 0 but Taken and Dormant, which count what claims have of the GPU: itself, shares, instances.
type Slices struct {
	SliceBytes uint64 `json:"slice_bytes"`
	Total      int    `json:"total"`
	// Taken are those of claims that run or are reserved, and Outside have no memory left, which processes without a claim use;
	// all others are free, unless the GPU is unhealthy. Dormant are those whose claim waits for a restart in place until others
	// reserve them.
	Taken   int `json:"taken"`
	Dormant int `json:"dormant"`
	Outside int `json:"outside"`
	Free    int `json:"free"`
}

// Claim is a claim, and what its container uses.
type Claim struct {
	claim.Claim
	// Mode is the claim's, which records leave out where it is slice.
	Mode  claim.Mode  `json:"mode"`
	State claim.State `json:"state"`
	// Enforcement is what enforces the limit, which records leave out where it is the library; empty without a limit.
	Enforcement claim.Enforcement `json:"enforcement,omitempty"`
	// Workload is what the claim was made for; nil if that is not known.
	Workload *claim.Workload `json:"workload,omitempty"`
	// Usage is nil, and UsageError says why, where it cannot be read; of a claim without a limit nobody counts it.
	Usage      *region.Usage `json:"usage,omitempty"`
	UsageError string        `json:"usage_error,omitempty"`
	// UsageWarning says why Usage is not to be believed; empty if nothing speaks against it.
	UsageWarning string `json:"usage_warning,omitempty"`
	// GPUUnhealthy is what makes the claim's GPU unhealthy; nil if nothing does.
	GPUUnhealthy *health.Condition `json:"gpu_unhealthy,omitempty"`
	// Uncounted says that the container uses GPU memory that the claim's region does not count; nil if it is not seen to.
	Uncounted *health.Condition `json:"uncounted,omitempty"`
	// Turns is what a governed claim has had of its GPU's time, as the governor says; nil if none does.
	Turns *status.Claim `json:"turns,omitempty"`
}

// New reports what a monitor has read.
func New(s *monitor.Snapshot) *Report {
	r := &Report{
		DriverVersion: s.DriverVersion, CUDAVersion: s.CUDAVersion,
		NVMLError: s.Errors[monitor.SourceNVML], LedgerError: s.Errors[monitor.SourceLedger], LayoutError: s.Errors[monitor.SourceLayout],
		HealthError: s.Errors[monitor.SourceHealth], GovernorError: s.Errors[monitor.SourceGovernor],
		GPUs: []GPU{}, Claims: []Claim{}, Problems: append([]claim.Problem{}, s.Problems...),
	}
	for i := range s.GPUs {
		r.GPUs = append(r.GPUs, newGPU(&s.GPUs[i], s.On(s.GPUs[i].UUID)))
	}
	for _, c := range s.Claims {
		r.Claims = append(r.Claims, newClaim(c, s.GPU(c.PhysicalGPU())))
	}
	return r
}

func newGPU(g *monitor.GPU, claims []*monitor.Claim) GPU {
	r := GPU{Index: g.Index, UUID: g.UUID, Name: g.Name, Mode: g.Mode, Error: g.Error, Unhealthy: g.Unhealthy, UtilizationPercent: -1}
	if g.MemoryBytes != nil {
		r.MemoryBytes = *g.MemoryBytes
	}
	if g.UsedBytes != nil {
		r.UsedBytes = *g.UsedBytes
	}
	if g.GPUPercent != nil {
		r.UtilizationPercent = int(*g.GPUPercent)
	}
	n := &r.Slices
	n.SliceBytes = g.SliceBytes
	for _, c := range claims {
		switch {
		case c.Holds():
			n.Taken += len(c.Slices)
		case c.State == claim.StateDormant:
			n.Dormant += len(c.Slices)
		}
	}
	if n.SliceBytes > 0 {
		n.Total = int(g.UsableBytes() / n.SliceBytes)
	}
	if g.Slices != nil {
		n.Outside = g.Slices.Outside
	}
	if g.Unhealthy == nil {
		n.Free = max(0, n.Total-n.Taken-n.Outside)
	}
	return r
}

// newClaim reports a claim. The GPU is nil for one whose region does not name it.
func newClaim(c *monitor.Claim, g *monitor.GPU) Claim {
	r := Claim{
		Claim: *c.Claim, Mode: cmp.Or(c.Mode, claim.ModeSlice), State: c.State, Usage: c.Usage, UsageError: c.UsageError,
		Uncounted: c.Uncounted, Turns: c.Turns, Enforcement: c.Enforced(),
	}
	if !c.Workload.IsZero() {
		r.Workload = &c.Workload
	}
	if g != nil {
		r.GPUUnhealthy = g.Unhealthy
	}
	if g != nil && c.GPU.Name == "" { // of `tranche run`, whose regions name the UUID only
		r.GPU.Index, r.GPU.Name = g.Index, g.Name
	}
	if u := c.Usage; u != nil && u.UsedBytes > u.LimitBytes {
		r.UsageWarning = fmt.Sprintf("its region says %s used of a limit of %s: the driver took more than was foreseen, or a "+
			"process of the claim damaged its region; nvidia-smi on the host shows what is held", mebibytes(u.UsedBytes), mebibytes(u.LimitBytes))
	}
	return r
}

// PhysicalGPU is the GPU that a claim is on, or on an instance of; the name of that one is in no record.
func PhysicalGPU(c *claim.Claim) claim.GPU {
	if c.MIG != nil {
		return claim.GPU{UUID: c.MIG.GPUUUID, Index: c.MIG.GPUIndex}
	}
	return c.GPU
}
