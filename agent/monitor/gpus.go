package monitor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
)

// addGPUs adds the GPUs that NVML knows, and those that only claims do.
func (m *Monitor) addGPUs(ctx context.Context, s *Snapshot) {
	var shared map[string]layout.GPU
	if m.NVML != nil {
		shared = m.addListed(ctx, s)
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

// addListed adds the GPUs that NVML lists, and returns how the device plugin shares them.
func (m *Monitor) addListed(ctx context.Context, s *Snapshot) map[string]layout.GPU {
	shared, err := layout.Read(m.RunDir)
	if err != nil {
		s.Errors[SourceLayout] = err.Error()
	}
	node, err := m.NVML.Read(ctx)
	if err != nil {
		s.Errors[SourceNVML] = err.Error()
		return shared
	}
	s.DriverVersion, s.CUDAVersion = node.DriverVersion, node.CUDAVersion
	for _, g := range node.WithInstances(func(uuid string) bool { return s.sharesInstance(uuid, shared) }) {
		gpu := GPU{
			Index: g.Index, UUID: g.UUID, Name: g.Name,
			MemoryBytes: known(g.MemoryBytes), DriverBytes: &g.ReservedBytes, UsedBytes: &g.UsedBytes,
		}
		if g.Origin != nil {
			gpu.Parent, gpu.WholeBytes = g.Origin.GPUUUID, g.Origin.GPUMemoryBytes
		}
		if percent := int64(g.UtilizationPercent); percent >= 0 {
			gpu.GPUPercent = &percent
		}
		s.GPUs = append(s.GPUs, gpu)
	}
	for _, f := range node.Failed {
		s.GPUs = append(s.GPUs, GPU{Index: f.Index, UUID: f.UUID, Error: fmt.Sprint(f.Err)})
	}
	return shared
}

// sharesInstance reports whether a MIG instance is shared like a GPU: the device plugin says so, or claims have slices of it.
func (s *Snapshot) sharesInstance(uuid string, shared map[string]layout.GPU) bool {
	_, ok := shared[uuid]
	return ok || len(s.On(uuid)) > 0
}

// addUnlisted adds GPUs that claims are on and NVML does not list. One that is lost NVML only counts: its claims say which it is.
func (s *Snapshot) addUnlisted() {
	missing := cmp.Or(s.Errors[SourceNVML], "NVML does not list it")
	for _, c := range s.Claims {
		if uuid := c.PhysicalGPU(); uuid != "" && s.GPU(uuid) == nil {
			index, name := c.GPU.Index, c.GPU.Name
			if c.MIG != nil {
				index, name = c.MIG.GPUIndex, ""
			}
			lost := func(g GPU) bool { return g.UUID == "" && g.Index == index }
			if at := slices.IndexFunc(s.GPUs, lost); at >= 0 && c.Owner != claim.OwnerRun { // whose regions name no index
				s.GPUs[at].UUID, s.GPUs[at].Name = uuid, name
				continue
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
		if said.SliceBytes == 0 && (c.SliceBytes > 0 || c.Sliced()) {
			said.SliceBytes = c.SliceSize()
		}
	}
	g.Mode, g.SliceBytes = cmp.Or(said.Mode, claim.ModeSlice), said.SliceBytes
	if g.Mode.Sliced() {
		g.SliceBytes = cmp.Or(g.SliceBytes, m.SliceBytes)
		g.Slices = &Slices{SliceBytes: g.SliceBytes}
	}
}

// countSlices counts the slices of a GPU by the state of the claims on it.
func (g *GPU) countSlices(claims []*Claim) {
	s := g.Slices
	if s == nil {
		return
	}
	for _, c := range claims {
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
	total := int(g.UsableBytes() / s.SliceBytes)
	s.Total = &total
	g.countFree()
}

// countFree counts the slices that belong to no claim. Where processes without a claim use more memory than those have, slices of
// dormant claims are without memory, too.
func (g *GPU) countFree() {
	s := g.Slices
	if s == nil || s.Total == nil {
		return
	}
	s.Free = max(0, *s.Total-s.Running-s.Reserved-s.Dormant)
	if g.OutsideBytes != nil {
		left := int((g.UsableBytes() - min(*g.OutsideBytes, g.UsableBytes())) / s.SliceBytes)
		s.Outside = min(s.Free+s.Dormant, max(0, *s.Total-left))
		s.Dormant -= max(0, s.Outside-s.Free)
		s.Free -= min(s.Free, s.Outside)
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
