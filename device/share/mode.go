package share

import (
	"context"
	"fmt"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// Mode is one way to share a GPU: which devices of it Nomad sees, and which claims a reservation of them makes.
type Mode interface {
	// Check returns why a GPU cannot be in this mode, as far as that is known when the plugin is configured.
	Check(ctx context.Context, g nvml.GPU, p Policy) error
	// Problem returns why no device of a GPU can be used although the GPU answers; empty if there is no such reason.
	Problem(g *GPU) string
	// Groups returns what Nomad sees of a GPU. Groups of several GPUs that have the same name are joined afterwards.
	Groups(g *GPU, o *Occupancy) []*ndevice.DeviceGroup
	// Has reports whether a GPU has a device with this ID.
	Has(g *GPU, id string) bool
	// Reserve makes claims, all or none, on devices of GPUs in this mode.
	Reserve(ctx context.Context, devices []Device) (*Reservation, error)
	// Stats returns the statistics of a GPU's devices, by the names of their groups.
	Stats(g *GPU, u *Usage, now time.Time) map[GroupKey]DeviceStats
}

// Device is what Nomad calls one: a part of a GPU, or all of it.
type Device struct {
	ID  string
	GPU GPU
}

// IDs returns the IDs of devices.
func IDs(devices []Device) []string {
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.ID)
	}
	return ids
}

// OneGPU returns the GPU to which all slices belong. It is an error if they belong to several, or if there are more
// slices than maxSlices; 0 is no limit.
func OneGPU(devices []Device, maxSlices int) (*GPU, error) {
	if maxSlices > 0 && len(devices) > maxSlices {
		return nil, fmt.Errorf("%d slices are more than one task may have on this node, which is %d "+
			"(max_slices in the plugin's configuration): ask for fewer", len(devices), maxSlices)
	}
	var uuids []string
	seen := make(map[string]bool)
	for _, d := range devices {
		if !seen[d.GPU.UUID] {
			seen[d.GPU.UUID] = true
			uuids = append(uuids, d.GPU.UUID)
		}
	}
	if len(uuids) > 1 {
		return nil, fmt.Errorf("the reservation names slices of %d GPUs: %s (GPUs %s); a claim is on one GPU, so ask for "+
			"each GPU in a device block of its own",
			len(uuids), claim.ListNames(IDs(devices)), claim.ListNames(uuids))
	}
	return &devices[0].GPU, nil
}

// Reservation is the outcome of a successful reservation.
type Reservation struct {
	Tokens []claim.Token
	// Visible is the value of NVIDIA_VISIBLE_DEVICES; empty for none.
	Visible []string
}
