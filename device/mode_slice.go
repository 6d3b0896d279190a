package device

import (
	"context"
	"fmt"
	"slices"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
)

// sliceType is the type of slices, as in jobspecs: nvidia/slice.
const sliceType = "slice"

// sliceMode offers a GPU's memory in slices. The shadow library holds each task
// to its own.
type sliceMode struct{ *node }

func (m *sliceMode) groups(g *gpu, taken *taken) []*ndevice.DeviceGroup {
	return []*ndevice.DeviceGroup{sliceGroup(g, taken, isolationMemory)}
}

// sliceGroup is a GPU's slices. A group for each GPU has the slices of one job
// lie on one GPU, since Nomad takes what one block asks for from one group.
func sliceGroup(g *gpu, taken *taken, isolation string) *ndevice.DeviceGroup {
	group := &ndevice.DeviceGroup{Vendor: vendor, Type: sliceType, Name: g.groupName(), Attributes: g.attributes(isolation)}
	g.addPlace(group.Attributes)
	group.Attributes["slice_memory"] = structs.NewIntAttribute(int64(g.sliceBytes>>20), structs.UnitMiB)
	group.Attributes["slices"] = structs.NewIntAttribute(int64(g.slices), "")
	group.Attributes[hintAttribute] = structs.NewIntAttribute(taken.calm.used[g.UUID], "")
	// A GPU without a single slice still shows one, so that its problem is seen.
	for number := range max(g.slices, 1) {
		slice := g.device(g.sliceID(number))
		setTaken(slice, taken.bySlice[slice.ID])
		group.Devices = append(group.Devices, slice)
	}
	taken.setWithheld(group)
	return group
}

func (m *sliceMode) has(g *gpu, id string) bool { return g.hasSlice(id) }

// hasSlice tells whether an ID is that of one of the GPU's slices.
func (g *gpu) hasSlice(id string) bool {
	uuid, number, ok := claim.ParseSliceName(id)
	return ok && uuid == g.UUID && number < g.slices
}

func (m *sliceMode) reserve(ctx context.Context, devices []device) ([]claim.Token, error) {
	request, err := m.sliceRequest(ctx, devices)
	if err != nil {
		return nil, err
	}
	return m.claim(ctx, request)
}

// oneGPUWithin returns the GPU that all devices are of, if one task may have as
// many.
func (n *node) oneGPUWithin(devices []device) (*gpu, error) {
	if n.maxSlices > 0 && len(devices) > n.maxSlices {
		return nil, fmt.Errorf("%d slices are more than one task may have on this node, which is %d "+
			"(max_slices in the plugin's configuration): ask for fewer", len(devices), n.maxSlices)
	}
	return oneGPU(devices)
}

// sliceRequest is what to ask the ledger for, for slices of one GPU.
func (n *node) sliceRequest(ctx context.Context, devices []device) (claim.Request, error) {
	g, err := n.oneGPUWithin(devices)
	if err != nil {
		return claim.Request{}, err
	}
	contextBytes, err := n.contextBytes(ctx, g)
	if err != nil {
		return claim.Request{}, err
	}
	limitBytes := uint64(len(devices)) * g.sliceBytes
	if limitBytes < contextBytes {
		return claim.Request{}, fmt.Errorf("%d slices of %s make a limit of %s, but a CUDA context on the GPU %s takes %s "+
			"before the first allocation: ask for at least %d slices",
			len(devices), memsize.Format(g.sliceBytes), memsize.Format(limitBytes), g, memsize.Format(contextBytes),
			(contextBytes+g.sliceBytes-1)/g.sliceBytes)
	}
	return claim.Request{
		GPU:        claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: contextBytes},
		Slices:     slices.Sorted(slices.Values(ids(devices))),
		SliceBytes: g.sliceBytes,
		LimitBytes: limitBytes,
		Owner:      claim.OwnerNomad,
		Mode:       g.mode,
	}, nil
}

// contextBytes is what a context costs on a GPU.
func (n *node) contextBytes(ctx context.Context, g *gpu) (uint64, error) {
	if g.mode == claim.ModeMPS {
		return n.mps.contextBytes(ctx, g)
	}
	return n.costs.Cost(ctx, g.costKey())
}

func (m *sliceMode) stats(g *gpu, uses *uses, now time.Time) map[groupKey]deviceStats {
	return sliceStatistics(g, uses, now)
}
