// Package mps implements mode mps: a GPU's memory in slices, with programs that compute side by side behind the GPU's MPS
// control daemon. It decides which GPU has a daemon when; package device/mps runs the daemons.
package mps

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/slice"
)

// Mode implements share.Mode.
type Mode struct {
	Ledger  *share.Ledger
	Daemons *Daemons
	// MaxSlices is the most that one reservation may have; 0 is no limit.
	MaxSlices int
}

// minCapability is the lowest major compute capability with which MPS gives programs address spaces of their own, and
// limits.
const minCapability = 7

// unsupported returns why a GPU cannot be in mode mps.
func unsupported(g nvml.GPU) error {
	major, _, _ := strings.Cut(g.ComputeCapability, ".")
	if capability, err := strconv.Atoi(major); err == nil && capability < minCapability {
		return fmt.Errorf("its compute capability is %s, and MPS has limits from %d.0 on only: share it in another mode",
			g.ComputeCapability, minCapability)
	}
	if g.MIG.Enabled {
		return errors.New("MIG is on: turn it off, or share the GPU in mode \"mig\"")
	}
	return nil
}

// Check implements share.Mode.
func (m *Mode) Check(_ context.Context, g nvml.GPU, _ share.Policy) error {
	if err := unsupported(g); err != nil {
		return err
	}
	_, err := mps.FindProgram(m.Daemons.DriverRoot)
	return errors.Join(err, mps.CheckRunDir(m.Daemons.RunDir, g.UUID))
}

// Problem implements share.Mode.
func (m *Mode) Problem(g *share.GPU) string {
	if err := unsupported(g.GPU); err != nil {
		return err.Error()
	}
	return slice.Problem(g)
}

// Groups implements share.Mode.
func (m *Mode) Groups(g *share.GPU, o *share.Occupancy) []*ndevice.DeviceGroup {
	group := slice.Group(m.Daemons.enforced(g), o, share.IsolationMPS)
	if reason := m.Daemons.problem(g.UUID); reason != "" && o.Earlier[g.UUID] == nil {
		share.MarkUnhealthy(group, reason)
	} else if err := m.Daemons.checkEnforcement(g); err != nil {
		share.MarkUnhealthy(group, err.Error())
	}
	return []*ndevice.DeviceGroup{group}
}

// Has implements share.Mode.
func (m *Mode) Has(g *share.GPU, id string) bool { return g.HasSlice(id) }

// Reserve implements share.Mode. It starts the daemon first: without it, the task's programs would find no GPU at all. The claim has
// its namespace when it returns.
func (m *Mode) Reserve(ctx context.Context, devices []share.Device) (*share.Reservation, error) {
	g, err := share.OneGPU(devices, m.MaxSlices)
	if err != nil {
		return nil, err
	}
	if err := m.Daemons.ensure(ctx, g); err != nil {
		return nil, err
	}
	if err := m.Daemons.checkEnforcement(g); err != nil {
		return nil, err
	}
	contextBytes, err := m.Daemons.contextBytes(ctx, g)
	if err != nil {
		return nil, err
	}
	request, err := slice.Request(m.Daemons.enforced(g), devices, contextBytes)
	if err != nil {
		return nil, err
	}
	request.MPS = &claim.MPS{Percentage: percentage(len(devices), g.SliceCount)}
	claims, tokens, err := m.Ledger.ReserveAll(ctx, []claim.Request{request})
	if err != nil {
		return nil, err
	}
	if err := m.Daemons.assign(ctx, g.UUID); err != nil {
		return nil, errors.Join(err, m.Ledger.DropInUse(context.WithoutCancel(ctx), claims[0].ID))
	}
	return &share.Reservation{Tokens: tokens}, nil
}

// percentage returns the share of the multiprocessors that goes with slices. It is rounded up: MPS accepts whole percents
// only and reads 0 as no limit. It is a maximum and nothing is set aside, so the shares of a GPU may add up to more than
// 100. Rounded down, a part of a GPU whose slices are all in use would stay idle.
func percentage(count, slices int) int {
	return min(100, max(1, (100*count+slices-1)/max(1, slices)))
}

// Stats implements share.Mode.
func (m *Mode) Stats(g *share.GPU, u *share.Usage, now time.Time) map[share.GroupKey]share.DeviceStats {
	return slice.Stats(g, u, now)
}
