package device

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
)

// mpsMode offers a GPU's memory in slices, as sliceMode does. Their programs compute side by side, behind the GPU's MPS
// control daemon.
type mpsMode struct{ *node }

func (m *mpsMode) groups(g *gpu, taken *taken) []*ndevice.DeviceGroup {
	group := sliceGroup(g, taken, isolationMPS)
	if reason := m.mps.down(g.UUID); reason != "" && taken.earlier[g.UUID] == nil {
		setWaits(group, reason)
	}
	return []*ndevice.DeviceGroup{group}
}

// setWaits says on healthy devices why Nomad is to leave them alone.
func setWaits(group *ndevice.DeviceGroup, reason string) {
	for _, d := range group.Devices {
		if d.Healthy {
			d.Healthy, d.HealthDesc = false, reason
		}
	}
}

func (m *mpsMode) has(g *gpu, id string) bool { return g.hasSlice(id) }

// reserve makes sure of the daemon first: without it the task's programs would find no GPU at all.
func (m *mpsMode) reserve(ctx context.Context, devices []device) ([]claim.Token, error) {
	g, err := oneGPU(devices)
	if err != nil {
		return nil, err
	}
	if err := m.mps.ensure(ctx, g); err != nil {
		return nil, err
	}
	request, err := m.sliceRequest(ctx, devices)
	if err != nil {
		return nil, err
	}
	request.MPS = &claim.MPS{Percentage: percentageOf(len(devices), g.slices)}
	return m.claim(ctx, request)
}

// percentageOf is the share of the multiprocessors that goes with slices. It is rounded up: MPS knows whole percents and
// reads 0 as no limit, and it is the most that a program may use, not something set aside, so that all shares of a GPU
// may well be more than 100 together. Rounded down, a GPU whose slices are all in use would be left idle in part.
func percentageOf(count, slices int) int {
	return min(100, max(1, (100*count+slices-1)/max(1, slices)))
}

func (m *mpsMode) stats(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats {
	return sliceStatistics(g, uses, now)
}

// leastMPSCapability is the compute capability from which on programs have address spaces of their own behind MPS, and
// limits.
const leastMPSCapability = 7

// lacksMPS is why a GPU cannot be shared by MPS; nil if it can.
func lacksMPS(g nvml.GPU) error {
	major, _, _ := strings.Cut(g.ComputeCapability, ".")
	if capability, err := strconv.Atoi(major); err == nil && capability < leastMPSCapability {
		return fmt.Errorf("its compute capability is %s, and MPS has limits from %d.0 on only: share it in another mode",
			g.ComputeCapability, leastMPSCapability)
	}
	if g.MIG.Enabled {
		return errors.New("MIG is on: turn it off, or share the GPU in mode \"mig\"")
	}
	return nil
}

// checkMPS tells whether a GPU of this node can be shared by MPS.
func (n *node) checkMPS(g nvml.GPU) error {
	if err := lacksMPS(n.withoutOwnMIG(g)); err != nil {
		return err
	}
	_, err := mps.FindProgram(n.driverRoot)
	return errors.Join(err, mps.CheckRunDir(n.runDir, g.UUID))
}
