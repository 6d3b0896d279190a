package share

import (
	"maps"
	"math"
	"slices"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/status"
)

// Usage is what claims use, by device ID, and what GPUs and MIG instances measure, by UUID.
type Usage struct {
	Claims map[string]*ClaimUsage
	GPUs   map[string]Measurements
}

// Instance returns what was measured of a MIG instance, or of its GPU if the instance was not measured.
func (u *Usage) Instance(instance, gpu string) Measurements {
	if measured := u.GPUs[instance]; measured != nil {
		return measured
	}
	return u.GPUs[gpu]
}

// ClaimUsage is a claim and what it uses.
type ClaimUsage struct {
	*claim.Claim
	UsedBytes, PeakBytes uint64
	// UncountedBytes is what the container uses beyond UsedBytes.
	UncountedBytes uint64
	Refused        uint64
	Processes      int
	// Workload is what the claim was made for; zero if that is not known.
	Workload claim.Workload
	// Turns is what a governed claim has had of the GPU's time; nil if no governor says so.
	Turns *status.Claim
}

// First reports whether a device is the first of the claim's.
func (u *ClaimUsage) First(device string) bool { return u != nil && device == u.Slices[0] }

// Part returns the part of the claim's memory that is shown for one of its devices. The parts of all add up to the whole: the
// slice of an allocation is unknown.
func (u *ClaimUsage) Part(device string, memory *structs.StatValue) *structs.StatValue {
	i, count := int64(slices.Index(u.Slices, device)), int64(len(u.Slices))
	part := *memory
	for _, value := range []**int64{&part.IntNumeratorVal, &part.IntDenominatorVal} {
		if *value != nil && i >= 0 {
			n := **value*(i+1)/count - **value*i/count
			*value = &n
		}
	}
	return &part
}

// Measurements are what a GPU measures of itself, as statistics by name.
type Measurements map[string]*structs.StatValue

// For returns the measurements that are shown for one of many devices of a GPU: all for the GPU's first device, so that
// they can be looked up, and for the first device of each claim; none for others. A node may have a thousand devices,
// and sends their statistics once a second.
func (m Measurements) For(device string, first bool, use *ClaimUsage) Measurements {
	if first || use.First(device) {
		return maps.Clone(m)
	}
	return make(Measurements)
}

// Whole returns the statistics of a GPU or a MIG instance, on which there is no limit. The usage may be nil.
func (m Measurements) Whole(use *ClaimUsage, now time.Time) *ndevice.DeviceStats {
	return m.Replica("", true, use, now)
}

// Replica returns the statistics of one of a GPU's replicas. The usage may be nil.
func (m Measurements) Replica(id string, first bool, use *ClaimUsage, now time.Time) *ndevice.DeviceStats {
	stats := m.For(id, first, use)
	if use != nil {
		stats.AddClaim(use)
	}
	if use != nil && (id == "" || use.First(id)) {
		stats.AddWorkload(use)
		stats.AddTurns(use)
	}
	return stats.WithSummary(m["Memory state"], now)
}

// WithSummary returns the measurements as the statistics of a device.
func (m Measurements) WithSummary(summary *structs.StatValue, now time.Time) *ndevice.DeviceStats {
	return &ndevice.DeviceStats{Summary: summary, Stats: &structs.StatObject{Attributes: m}, Timestamp: now}
}

// AddClaim adds the ID of the claim that uses a device.
func (m Measurements) AddClaim(use *ClaimUsage) {
	id := use.ID
	m["Claim"] = &structs.StatValue{StringVal: &id, Desc: "Claim that has this device"}
}

// AddWorkload adds what the claim was made for.
func (m Measurements) AddWorkload(use *ClaimUsage) {
	if !use.Workload.IsZero() {
		text := use.Workload.String()
		m["Claim workload"] = &structs.StatValue{StringVal: &text, Desc: "Task or container that the claim was made for"}
	}
}

// AddTurns adds what a governed claim has, and has had, of the GPU's time; nothing for other claims.
func (m Measurements) AddTurns(use *ClaimUsage) {
	if !use.Governed() {
		return
	}
	m["Claim compute share"] = fraction(float64(use.Compute.Share)/10, "%", "Part of the GPU's time while others want it, too")
	m["Claim compute ceiling"] = fraction(float64(use.Compute.Max)/10, "%", "The most of the GPU's time")
	if u := use.Turns; u != nil {
		m["Claim compute had"] = fraction(100*u.RecentPart, "%", "Part of the GPU's time in the last ten seconds")
		m["Claim compute time"] = fraction(u.GPUSeconds, "s", "GPU time that the claim was charged")
		m["Claim compute waited"] = fraction(u.WaitingSeconds, "s", "Time in which the claim wanted the GPU while it was another's turn")
		m["Claim compute overruns"] = Count(u.Overruns, "Turns that had not ended by their deadline")
		m["Claim processes not joined"] = Count(uint64(len(u.NotJoined)), "Processes on the GPU for which the share does not hold")
	}
}

func fraction(value float64, unit, description string) *structs.StatValue {
	value = math.Round(value*1000) / 1000
	return &structs.StatValue{FloatNumeratorVal: &value, Unit: unit, Desc: description}
}

// Count returns a number as a statistic.
func Count(value uint64, description string) *structs.StatValue {
	n := int64(value)
	return &structs.StatValue{IntNumeratorVal: &n, Desc: description}
}

// Mebibytes returns a part of some memory as a statistic.
func Mebibytes(partBytes, wholeBytes uint64, description string) *structs.StatValue {
	n, of := int64(partBytes>>20), int64(wholeBytes>>20)
	return &structs.StatValue{IntNumeratorVal: &n, IntDenominatorVal: &of, Unit: structs.UnitMiB, Desc: description}
}
