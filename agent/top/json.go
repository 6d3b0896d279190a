package top

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/governor/status"
)

// nodeState is what `tranche top --json` prints. Programs rely on its names. What is unknown is null.
type nodeState struct {
	Time   time.Time                 `json:"time"`
	Errors map[monitor.Source]string `json:"errors"`
	GPUs   []gpuState                `json:"gpus"`
	Claims []claimState              `json:"claims"`
}

type gpuState struct {
	Index         int          `json:"index"`
	UUID          string       `json:"uuid"`
	Name          string       `json:"name"`
	Mode          claim.Mode   `json:"mode"`
	Error         string       `json:"error,omitempty"`
	Unhealthy     string       `json:"unhealthy,omitempty"`
	MemoryBytes   *uint64      `json:"memory_bytes"`
	UsedBytes     *uint64      `json:"used_bytes"`
	ReservedBytes uint64       `json:"reserved_bytes"`
	OutsideBytes  *uint64      `json:"outside_bytes"`
	Utilization   *float64     `json:"utilization_ratio"`
	Celsius       *int64       `json:"temperature_celsius"`
	Watts         *float64     `json:"power_watts"`
	Slices        *slicesState `json:"slices,omitempty"`
}

type slicesState struct {
	SliceBytes uint64 `json:"slice_bytes"`
	Total      *int   `json:"total"`
	Running    int    `json:"running"`
	Reserved   int    `json:"reserved"`
	Dormant    int    `json:"dormant"`
	Outside    int    `json:"outside"`
	Unhealthy  int    `json:"unhealthy"`
	Free       int    `json:"free"`
}

type claimState struct {
	ID         string         `json:"id"`
	GPUIndex   int            `json:"gpu_index"`
	GPUUUID    string         `json:"gpu_uuid"`
	State      claim.State    `json:"state"`
	Owner      string         `json:"owner"`
	Workload   claim.Workload `json:"workload"`
	Slices     int            `json:"slices"`
	LimitBytes *uint64        `json:"limit_bytes"` // null: it has none
	// Enforcement is what enforces the limit; empty without one.
	Enforcement claim.Enforcement `json:"enforcement"`
	UsedBytes   *uint64           `json:"used_bytes"`
	PeakBytes   *uint64           `json:"peak_bytes"`
	// UnusedGiBHours is of the last day.
	UnusedGiBHours *float64       `json:"unused_gib_hours"`
	Refused        *uint64        `json:"refused"`
	Processes      *int           `json:"processes"`
	Utilization    *float64       `json:"utilization_ratio"`
	Uncounted      *uint64        `json:"uncounted_bytes"`
	Compute        *claim.Compute `json:"compute"` // null: it is not governed
	Turns          *status.Claim  `json:"turns"`
	// Activity is null unless it runs.
	Activity    *monitor.Activity `json:"activity"`
	IdleSeconds *float64          `json:"idle_seconds"`
	IdleTooLong *idle.Condition   `json:"idle_too_long"` // null: the idle policy says nothing of it
}

// JSON writes the state of the node on a line of JSON: once, or at each interval until the context ends. The error of one state
// may be ErrIncomplete.
func JSON(ctx context.Context, o Options, once bool, out io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	encoder := json.NewEncoder(out)
	ticker := time.NewTicker(o.Interval)
	defer ticker.Stop()
	for {
		s := o.Snapshot(ctx)
		switch err := encoder.Encode(stateOf(s, o)); {
		case err != nil:
			return err
		case once:
			return complete(s)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func stateOf(s *monitor.Snapshot, o Options) nodeState {
	all := nodeState{Time: s.Time, Errors: s.Errors, GPUs: []gpuState{}, Claims: []claimState{}}
	for i := range s.GPUs {
		all.GPUs = append(all.GPUs, stateOfGPU(s, &s.GPUs[i]))
	}
	o.Dormant = true
	claims, _ := o.selected(s)
	for _, c := range claims {
		all.Claims = append(all.Claims, stateOfClaim(s, c))
	}
	return all
}

func stateOfGPU(s *monitor.Snapshot, g *monitor.GPU) gpuState {
	is := gpuState{
		Index: g.Index, UUID: g.UUID, Name: g.Name, Mode: g.Mode, Error: g.Error, MemoryBytes: g.MemoryBytes, UsedBytes: g.UsedBytes,
		ReservedBytes: s.ReservedBytes(g.UUID), OutsideBytes: g.OutsideBytes, Utilization: divided(g.GPUPercent, 100),
		Celsius: g.TemperatureCelsius, Watts: divided(g.PowerMilliwatts, 1000),
	}
	if g.Unhealthy != nil {
		is.Unhealthy = g.Unhealthy.Problem
	}
	if g.Slices != nil {
		counts := slicesState(*g.Slices)
		is.Slices = &counts
	}
	return is
}

func stateOfClaim(s *monitor.Snapshot, c *monitor.Claim) claimState {
	is := claimState{
		ID: c.ID, GPUIndex: c.GPUIndex, GPUUUID: c.PhysicalGPU(), State: c.State, Owner: c.Owner, Workload: c.Workload,
		Slices: len(c.Slices), Compute: c.Compute, Turns: c.Turns, IdleTooLong: c.IdleTooLong, PeakBytes: c.PeakBytes(),
	}
	if hours := s.UnusedGiBHours(c); hours != nil {
		rounded := math.Round(*hours*1e3) / 1e3
		is.UnusedGiBHours = &rounded
	}
	if c.Utilization != nil {
		ratio := math.Round(*c.Utilization*1e4) / 1e4 // a sum over processes
		is.Utilization = &ratio
	}
	if c.Idleness.Activity != "" {
		is.Activity = &c.Idleness.Activity
	}
	if c.Idleness.Idle != nil {
		seconds := c.Idleness.Idle.Round(time.Second).Seconds()
		is.IdleSeconds = &seconds
	}
	if c.Limited() {
		is.LimitBytes, is.Enforcement = &c.LimitBytes, c.Enforced()
	}
	if u := c.Usage; u != nil {
		processes := len(u.Processes)
		is.UsedBytes, is.Refused, is.Processes = &u.UsedBytes, &u.Refused, &processes
	}
	if c.Uncounted != nil {
		is.Uncounted = &c.Uncounted.Bytes
	}
	return is
}

func divided(value *int64, by float64) *float64 {
	if value == nil {
		return nil
	}
	number := float64(*value) / by
	return &number
}
