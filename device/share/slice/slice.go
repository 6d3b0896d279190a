// Package slice implements mode slice: a GPU's memory in slices, with a limit for each task that the shadow library
// enforces. Other modes with slices build on its groups and statistics.
package slice

import (
	"context"
	"fmt"
	"slices"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/size"
)

// UsedAttribute is the number of a GPU's slices that are used, for jobs that prefer the fullest GPU on which they fit. It is
// published if the operator wants it, since each change registers the node again. It begins with "unique." to stay out of the node's class.
const UsedAttribute = "unique.slices_used"

// Mode implements share.Mode.
type Mode struct {
	Ledger *share.Ledger
	Costs  share.ContextCosts
	// MaxSlices is the most that one reservation may have; 0 is no limit.
	MaxSlices int
}

// Check implements share.Mode: any GPU can be in mode slice.
func (m *Mode) Check(context.Context, nvml.GPU, share.Policy) error { return nil }

// Problem implements share.Mode.
func (m *Mode) Problem(g *share.GPU) string { return Problem(g) }

// Problem returns why a GPU has no slices.
func Problem(g *share.GPU) string {
	if g.SliceCount > 0 {
		return ""
	}
	what := "GPU"
	if g.Origin != nil {
		what = "MIG instance " + g.Origin.Profile
	}
	return fmt.Sprintf("slice_memory is %s, but the %s has only %s for processes: set it to less",
		size.Format(g.SliceBytes), what, size.Format(g.UsableBytes()))
}

// Groups implements share.Mode.
func (m *Mode) Groups(g *share.GPU, o *share.Occupancy) []*ndevice.DeviceGroup {
	return []*ndevice.DeviceGroup{Group(g, o, share.IsolationMemory)}
}

// Group returns a GPU's slices. One group for each GPU keeps the slices of a job on one GPU, because Nomad takes all
// devices of a device block from one group.
func Group(g *share.GPU, o *share.Occupancy, isolation string) *ndevice.DeviceGroup {
	group := g.OwnGroup(share.SliceType, isolation)
	group.Attributes["slice_memory"] = structs.NewIntAttribute(int64(g.SliceBytes>>20), structs.UnitMiB)
	group.Attributes["enforcement"] = structs.NewStringAttribute(string(g.Enforced()))
	group.Attributes["slices"] = structs.NewIntAttribute(int64(g.SliceCount), "")
	if o.Deferrable.SlicesUsed != nil {
		group.Attributes[UsedAttribute] = structs.NewIntAttribute(o.Deferrable.SlicesUsed[g.UUID], "")
	}
	// A GPU without a single slice still shows one, for its problem to be seen.
	for number := range max(g.SliceCount, 1) {
		slice := g.Device(g.SliceID(number))
		share.MarkExternal(slice, o.ExternalSlices[slice.ID])
		group.Devices = append(group.Devices, slice)
	}
	o.MarkBlocked(group)
	return group
}

// Has implements share.Mode.
func (m *Mode) Has(g *share.GPU, id string) bool { return g.HasSlice(id) }

// Reserve implements share.Mode.
func (m *Mode) Reserve(ctx context.Context, devices []share.Device) (*share.Reservation, error) {
	g, err := share.OneGPU(devices, m.MaxSlices)
	if err != nil {
		return nil, err
	}
	contextBytes, err := m.Costs.Cost(ctx, g.CostKey())
	if err != nil {
		return nil, err
	}
	request, err := Request(g, devices, contextBytes)
	if err != nil {
		return nil, err
	}
	tokens, err := m.Ledger.Make(ctx, request)
	return &share.Reservation{Tokens: tokens}, err
}

// Request returns the claim to make on slices of one GPU, on which a CUDA context takes contextBytes.
func Request(g *share.GPU, devices []share.Device, contextBytes uint64) (claim.Request, error) {
	limitBytes := uint64(len(devices)) * g.SliceBytes
	if limitBytes < contextBytes {
		return claim.Request{}, fmt.Errorf("%d slices of %s make a limit of %s, but a CUDA context on the GPU %s takes %s "+
			"before the first allocation: ask for at least %d slices",
			len(devices), size.Format(g.SliceBytes), size.Format(limitBytes), g, size.Format(contextBytes),
			(contextBytes+g.SliceBytes-1)/g.SliceBytes)
	}
	gpu := g.Claim()
	gpu.ContextBytes = contextBytes
	return claim.Request{
		GPU:         gpu,
		Slices:      slices.Sorted(slices.Values(share.IDs(devices))),
		SliceBytes:  g.SliceBytes,
		LimitBytes:  limitBytes,
		Owner:       claim.OwnerNomad,
		Mode:        g.Mode,
		Enforcement: g.Enforced(),
		Compute:     g.Compute(len(devices), g.SliceCount),
	}, nil
}

// Stats implements share.Mode.
func (m *Mode) Stats(g *share.GPU, u *share.Usage, now time.Time) map[share.GroupKey]share.DeviceStats {
	return Stats(g, u, now)
}

// Stats returns the statistics of a GPU's slices whose claims have a limit.
func Stats(g *share.GPU, u *share.Usage, now time.Time) map[share.GroupKey]share.DeviceStats {
	return StatsBy(g, u, now, func(id string, first bool, use *share.ClaimUsage) *ndevice.DeviceStats {
		return claimed(u.GPUs[g.UUID].For(id, first, use), id, use, now)
	})
}

// StatsBy returns the statistics of a GPU's slices; the function returns those of a slice that a claim uses. Each slice
// has some, because Nomad's commands expect them.
func StatsBy(
	g *share.GPU, u *share.Usage, now time.Time,
	claimed func(id string, first bool, use *share.ClaimUsage) *ndevice.DeviceStats,
) map[share.GroupKey]share.DeviceStats {
	all := make(share.DeviceStats, g.SliceCount)
	summary := share.Mebibytes(0, g.SliceBytes, "No claim has this slice")
	free := make(share.Measurements).WithSummary(summary, now)
	for number := range g.SliceCount {
		id := g.SliceID(number)
		switch use := u.Claims[id]; {
		case use != nil:
			all[id] = claimed(id, number == 0, use)
		case number == 0:
			all[id] = u.GPUs[g.UUID].WithSummary(summary, now)
		default:
			all[id] = free
		}
	}
	return map[share.GroupKey]share.DeviceStats{{Type: share.SliceType, Name: g.GroupName()}: all}
}

// claimed returns the statistics of a slice that a claim uses. The summaries of a claim's slices are equal parts of what it uses,
// and add up to that; the first slice has the other statistics of the claim.
func claimed(stats share.Measurements, id string, use *share.ClaimUsage, now time.Time) *ndevice.DeviceStats {
	memory := share.Mebibytes(use.UsedBytes, use.LimitBytes, "Memory in use by the claim, of its limit")
	summary := use.Part(id, memory)
	summary.Desc = "This slice's equal part of the memory in use by its claim, of the claim's limit"
	stats.AddClaim(use)
	if use.First(id) {
		stats.AddWorkload(use)
		stats["Claim slices"] = share.Count(uint64(len(use.Slices)), "Slices of the claim")
		stats["Claim memory"] = memory
		stats["Claim peak memory"] = share.Mebibytes(use.PeakBytes, use.LimitBytes,
			"Most memory that the claim had in use, of its limit")
		stats["Claim processes"] = share.Count(uint64(use.Processes), "Processes of the claim that hold memory")
		stats["Claim uncounted memory"] = share.Mebibytes(use.UncountedBytes, use.LimitBytes,
			"Memory that the claim's container uses and does not count, of its limit")
		stats["Claim refused allocations"] = share.Count(use.Refused, "Allocations that the claim's limit refused")
		stats.AddTurns(use)
	}
	return stats.WithSummary(summary, now)
}
