package cli

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// addGPUs adds the GPUs that NVML knows, and those that only claims do.
func (r *report) addGPUs(node *nvml.Node, shared map[string]layout.GPU, sliceBytes uint64) {
	r.DriverVersion, r.CUDAVersion = node.DriverVersion, node.CUDAVersion
	known := map[string]claim.GPU{}
	add := func(g gpuReport, usableBytes uint64) {
		sharing := r.sharing(g.UUID, shared, sliceBytes)
		g.Mode, g.Slices = sharing.Mode, r.countSlices(g.UUID, usableBytes, sharing.SliceBytes)
		r.GPUs = append(r.GPUs, g)
		known[g.UUID] = claim.GPU{Index: g.Index, Name: g.Name}
	}
	for _, g := range node.WithInstances(func(uuid string) bool { return r.sharesInstance(uuid, shared) }) {
		add(gpuReport{
			Index: g.Index, UUID: g.UUID, Name: g.Name,
			MemoryBytes: g.MemoryBytes, UsedBytes: g.UsedBytes, UtilizationPercent: g.UtilizationPercent,
		}, g.UsableBytes())
	}
	for _, f := range node.Failed {
		add(gpuReport{Index: f.Index, UUID: f.UUID, Error: fmt.Sprint(f.Err), UtilizationPercent: -1}, 0)
	}
	for i := range r.Claims {
		c := &r.Claims[i].Claim
		g := physicalGPU(c)
		if _, ok := known[g.UUID]; !ok && g.UUID != "" {
			add(gpuReport{
				Index: g.Index, UUID: g.UUID, Name: g.Name, UtilizationPercent: -1, Error: "NVML does not list it",
			}, 0)
		}
		if c.GPU.Name == "" { // of `tranche run`, whose regions name the UUID only
			c.GPU.Index, c.GPU.Name = known[g.UUID].Index, known[g.UUID].Name
		}
	}
}

// sharesInstance reports whether a MIG instance is shared like a GPU: the device plugin says so, or claims have slices of it.
func (r *report) sharesInstance(uuid string, shared map[string]layout.GPU) bool {
	_, ok := shared[uuid]
	return ok || slices.ContainsFunc(r.Claims, func(c claimReport) bool { return c.PhysicalGPU() == uuid })
}

// physicalGPU is the GPU that a claim is on, or on an instance of; the name of that one is in no record.
func physicalGPU(c *claim.Claim) claim.GPU {
	if c.MIG != nil {
		return claim.GPU{UUID: c.MIG.GPUUUID, Index: c.MIG.GPUIndex}
	}
	return c.GPU
}

// sharing is how a GPU is shared: as the device plugin says, else as the claims on it do. SliceBytes is 0 in a mode
// without slices.
func (r *report) sharing(uuid string, shared map[string]layout.GPU, sliceBytes uint64) layout.GPU {
	said, ok := shared[uuid]
	for _, c := range r.Claims {
		if c.PhysicalGPU() == uuid && !ok {
			said.Mode = c.Mode
		}
	}
	said.Mode = cmp.Or(said.Mode, claim.ModeSlice)
	if said.Mode == claim.ModeSlice || said.Mode == claim.ModeMPS {
		said.SliceBytes = cmp.Or(said.SliceBytes, sliceBytes)
	}
	return said
}

// countSlices counts the slices of a GPU. Where claims say of which size they are, those count.
func (r *report) countSlices(uuid string, usableBytes, sliceBytes uint64) sliceReport {
	s := sliceReport{SliceBytes: sliceBytes}
	for _, c := range r.Claims {
		if c.PhysicalGPU() != uuid || len(c.Slices) == 0 {
			continue
		}
		if c.SliceBytes > 0 || c.Mode == claim.ModeSlice || c.Mode == claim.ModeMPS {
			s.SliceBytes = c.SliceSize()
		}
		switch c.State {
		case claim.StateDormant:
			s.Dormant += len(c.Slices)
		case claim.StateEnded:
		default:
			s.Taken += len(c.Slices)
		}
	}
	if s.SliceBytes > 0 {
		s.Total = int(usableBytes / s.SliceBytes)
	}
	s.Free = max(0, s.Total-s.Taken)
	return s
}

// addHealth adds which GPUs are unhealthy and which claims have uncounted memory, as the device plugin says.
func (r *report) addHealth(runDir string) {
	published, err := health.Read(runDir)
	if err != nil {
		r.HealthError = err.Error()
	}
	for i, g := range r.GPUs {
		if condition, ok := published.GPUs[g.UUID]; ok {
			r.GPUs[i].Unhealthy = &condition
		}
	}
	for i, c := range r.Claims {
		if condition, ok := published.GPUs[c.PhysicalGPU()]; ok {
			r.Claims[i].GPUUnhealthy = &condition
		}
		if condition, ok := published.Uncounted[c.ID]; ok && c.State == claim.StateRunning {
			r.Claims[i].Uncounted = &condition
		}
	}
}
