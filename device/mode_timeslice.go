package device

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
)

// timesliceType is the type of shares without a limit, as in jobspecs:
// nvidia/timeslice.
const timesliceType = "timeslice"

// shareInfix is what stands between a GPU's UUID and a share's number.
const shareInfix = "/share-"

// timesliceMode offers a GPU to several tasks, which take turns at it. Nothing
// holds one of them to a part of the memory.
type timesliceMode struct{ *node }

func shareID(uuid string, number int) string {
	return fmt.Sprintf("%s%s%03d", uuid, shareInfix, number)
}

func (m *timesliceMode) groups(g *gpu, taken *taken) []*ndevice.DeviceGroup {
	group := &ndevice.DeviceGroup{
		Vendor: vendor, Type: timesliceType, Name: g.groupName(), Attributes: g.attributes(isolationNone),
	}
	g.addPlace(group.Attributes)
	group.Attributes["replicas"] = structs.NewIntAttribute(int64(g.replicas), "")
	for number := range g.replicas {
		share := g.device(shareID(g.UUID, number))
		setTaken(share, taken.byGPU[g.UUID])
		group.Devices = append(group.Devices, share)
	}
	return []*ndevice.DeviceGroup{group}
}

func (m *timesliceMode) has(g *gpu, id string) bool {
	uuid, digits, ok := strings.Cut(id, shareInfix)
	number, err := strconv.Atoi(digits)
	return ok && err == nil && uuid == g.UUID && number >= 0 && number < g.replicas && shareID(uuid, number) == id
}

// reserve refuses more than one share: a task would get no more of the GPU for
// two than for one.
func (m *timesliceMode) reserve(ctx context.Context, devices []device) ([]claim.Token, error) {
	if len(devices) > 1 {
		return nil, fmt.Errorf("the reservation names %d shares of a GPU in mode %q, and %d give a task no more than one "+
			"does: ask for one, or for slices, which have a size", len(devices), claim.ModeTimeslice, len(devices))
	}
	g := devices[0].gpu
	return m.claim(ctx, claim.Request{
		GPU:        claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name},
		Slices:     ids(devices),
		LimitBytes: g.MemoryBytes,
		Owner:      claim.OwnerNomad,
		Mode:       claim.ModeTimeslice,
		Unlimited:  true,
	})
}

func (m *timesliceMode) stats(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats {
	all := make(deviceStats, g.replicas)
	for number := range g.replicas {
		id := shareID(g.UUID, number)
		all[id] = uses.gpus[g.UUID].ofShare(id, number == 0, uses.byDevice[id], now)
	}
	return map[groupKey]deviceStats{{timesliceType, g.groupName()}: all}
}
