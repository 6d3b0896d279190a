// Package timeslice implements mode timeslice: several tasks take turns at a GPU, and nothing limits the memory of one.
package timeslice

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
)

const (
	// deviceType is the device type of replicas, as in jobspecs: nvidia/timeslice.
	deviceType = "timeslice"

	// infix separates a GPU's UUID from a replica's number. Ledgers hold IDs with it.
	infix = "/share-"
)

// Mode implements share.Mode.
type Mode struct{ Ledger *share.Ledger }

// Check implements share.Mode: any GPU can be in mode timeslice.
func (m *Mode) Check(context.Context, nvml.GPU, share.Policy) error { return nil }

// Problem implements share.Mode.
func (m *Mode) Problem(*share.GPU) string { return "" }

func replicaID(uuid string, number int) string { return fmt.Sprintf("%s%s%03d", uuid, infix, number) }

// Groups implements share.Mode.
func (m *Mode) Groups(g *share.GPU, o *share.Occupancy) []*ndevice.DeviceGroup {
	group := g.OwnGroup(deviceType, share.IsolationNone)
	group.Attributes["replicas"] = structs.NewIntAttribute(int64(g.Replicas), "")
	for number := range g.Replicas {
		replica := g.Device(replicaID(g.UUID, number))
		share.MarkExternal(replica, o.ExternalGPUs[g.UUID])
		group.Devices = append(group.Devices, replica)
	}
	return []*ndevice.DeviceGroup{group}
}

// Has implements share.Mode.
func (m *Mode) Has(g *share.GPU, id string) bool {
	uuid, digits, ok := strings.Cut(id, infix)
	number, err := strconv.Atoi(digits)
	return ok && err == nil && uuid == g.UUID && number >= 0 && number < g.Replicas && replicaID(uuid, number) == id
}

// Reserve implements share.Mode. It refuses more than one replica of a GPU whose time the driver shares, because two give a
// task no more of it than one.
func (m *Mode) Reserve(ctx context.Context, devices []share.Device) (*share.Reservation, error) {
	g, err := share.OneGPU(devices, 0)
	if err != nil {
		return nil, err
	}
	if len(devices) > 1 && !g.Shares {
		return nil, fmt.Errorf("the reservation names %d replicas of a GPU in mode %q, and %d give a task no more than one "+
			"does: ask for one, for slices, which have a size, or set compute = \"shares\" in the plugin's configuration",
			len(devices), claim.ModeTimeslice, len(devices))
	}
	tokens, err := m.Ledger.Make(ctx, claim.Request{
		GPU:        g.Claim(),
		Slices:     slices.Sorted(slices.Values(share.IDs(devices))),
		LimitBytes: g.MemoryBytes,
		Owner:      claim.OwnerNomad,
		Mode:       claim.ModeTimeslice,
		Unlimited:  true,
		Compute:    g.Compute(len(devices), g.Replicas),
	})
	return &share.Reservation{Tokens: tokens}, err
}

// Stats implements share.Mode.
func (m *Mode) Stats(g *share.GPU, u *share.Usage, now time.Time) map[share.GroupKey]share.DeviceStats {
	all := make(share.DeviceStats, g.Replicas)
	for number := range g.Replicas {
		id := replicaID(g.UUID, number)
		all[id] = u.GPUs[g.UUID].Replica(id, number == 0, u.Claims[id], now)
	}
	return map[share.GroupKey]share.DeviceStats{{Type: deviceType, Name: g.GroupName()}: all}
}
