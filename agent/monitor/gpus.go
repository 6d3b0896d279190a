package monitor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// addGPUs adds the GPUs that NVML knows, and those that only claims do.
func (m *Monitor) addGPUs(ctx context.Context, s *Snapshot) {
	shared, err := layout.Read(m.RunDir)
	if err != nil {
		s.Errors[SourceLayout] = err.Error()
	}
	node, err := m.NVML.Read(ctx)
	if err != nil {
		s.Errors[SourceNVML] = err.Error()
		node = &nvml.Node{}
	}
	s.DriverVersion, s.CUDAVersion = node.DriverVersion, node.CUDAVersion
	for _, g := range node.WithInstances(func(uuid string) bool { return s.sharesInstance(uuid, shared) }) {
		gpu := GPU{
			Index: g.Index, UUID: g.UUID, Name: g.Name,
			MemoryBytes: known(g.MemoryBytes), DriverBytes: &g.ReservedBytes, UsedBytes: &g.UsedBytes,
		}
		s.GPUs = append(s.GPUs, gpu)
	}
	for _, f := range node.Failed {
		s.GPUs = append(s.GPUs, GPU{Index: f.Index, UUID: f.UUID, Error: fmt.Sprint(f.Err)})
	}
	s.addUnlisted()
	slices.SortStableFunc(s.GPUs, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	for i := range s.GPUs {
		m.addSharing(s, &s.GPUs[i], shared)
	}
	for _, c := range s.Claims {
		if g := s.GPU(c.PhysicalGPU()); g != nil {
			c.GPUIndex = g.Index
		}
	}
}

// sharesInstance reports whether a MIG instance is shared like a GPU: the device plugin says so, or claims have slices of it.
func (s *Snapshot) sharesInstance(uuid string, shared map[string]layout.GPU) bool {
	_, ok := shared[uuid]
	return ok || len(s.On(uuid)) > 0
}

// addUnlisted adds GPUs that claims are on and NVML does not list.
func (s *Snapshot) addUnlisted() {
	missing := cmp.Or(s.Errors[SourceNVML], "NVML does not list it")
	for _, c := range s.Claims {
		if uuid := c.PhysicalGPU(); uuid != "" && s.GPU(uuid) == nil {
			index, name := c.GPU.Index, c.GPU.Name
			if c.MIG != nil {
				index, name = c.MIG.GPUIndex, ""
			}
			s.GPUs = append(s.GPUs, GPU{Index: index, UUID: uuid, Name: name, Error: missing})
		}
	}
}

// addSharing adds how a GPU is shared: as the device plugin says, else as the claims on it do.
func (m *Monitor) addSharing(s *Snapshot, g *GPU, shared map[string]layout.GPU) {
	said, ok := shared[g.UUID]
	for _, c := range s.On(g.UUID) {
		if !ok {
			said.Mode = c.Mode
		}
		if c.SliceBytes > 0 && said.SliceBytes == 0 {
			said.SliceBytes = c.SliceBytes
		}
	}
	g.Mode = cmp.Or(said.Mode, claim.ModeSlice)
	if g.Mode == claim.ModeSlice || g.Mode == claim.ModeMPS {
		g.Slices = &Slices{SliceBytes: cmp.Or(said.SliceBytes, m.SliceBytes)}
	}
}

// countSlices counts the slices of a GPU by their state.
func (g *GPU) countSlices(claims []*Claim) {
	s := g.Slices
	if s == nil {
		return
	}
	for _, c := range claims {
		if c.PhysicalGPU() != g.UUID {
			continue
		}
		switch c.State {
		case claim.StateRunning:
			s.Running += len(c.Slices)
		case claim.StateReserved:
			s.Reserved += len(c.Slices)
		case claim.StateDormant:
			s.Dormant += len(c.Slices)
		}
	}
	if g.MemoryBytes == nil || s.SliceBytes == 0 {
		return
	}
	usable := *g.MemoryBytes - min(*g.DriverBytes, *g.MemoryBytes)
	total := int(usable / s.SliceBytes)
	s.Total = &total
	s.Free = max(0, total-s.Running-s.Reserved-s.Dormant)
	if g.OutsideBytes != nil {
		left := int((usable - min(*g.OutsideBytes, usable)) / s.SliceBytes)
		s.Outside = min(s.Free, max(0, total-left))
		s.Free -= s.Outside
	}
	if g.Unhealthy != nil {
		s.Unhealthy, s.Free = s.Free, 0
	}
}

// known returns a number that is 0 if it is unknown.
func known(value uint64) *uint64 {
	if value == 0 {
		return nil
	}
	return &value
}
