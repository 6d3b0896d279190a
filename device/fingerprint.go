package device

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/claim/memsize"
	"tranche.dev/tranche/device/contextcost"
)

// fingerprint sends what devices there are: at once, even if there are none,
// since the agent waits for that before it takes on work; and then whenever
// something changed, but only then, for each message makes Nomad register the
// node anew.
func (m *sliceMode) fingerprint(ctx context.Context, out chan<- *ndevice.FingerprintResponse) {
	defer close(out)
	m.logger.Info("looking for GPUs", "driver_root", m.driverRoot, "period", m.fingerprintPeriod.String(),
		"slice_memory", memsize.Format(m.sliceBytes), "ignored_gpu_ids", m.ignoredUUIDs())
	ticker := time.NewTicker(m.fingerprintPeriod)
	defer ticker.Stop()
	ledger := m.watchLedger(ctx)

	var sent []*ndevice.DeviceGroup
	for first, scan := true, true; ; first = false {
		if scan {
			m.sweep(ctx)
			_ = m.scan(ctx)
		}
		groups := m.deviceGroups(ctx)
		if first || !reflect.DeepEqual(sent, groups) {
			select {
			case out <- ndevice.NewFingerprint(groups...):
				sent = groups
			case <-ctx.Done():
				return
			}
		}
		scan = true
		select {
		case <-ticker.C:
		case <-m.changed:
		case <-ledger:
			scan = false // the GPUs have nothing to do with it
		case <-ctx.Done():
			return
		}
	}
}

// scan asks the driver what GPUs there are. What goes wrong is logged, and part
// of the inventory; the error is for who needs an answer now.
func (m *sliceMode) scan(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, m.nvmlTimeout)
	defer cancel()
	node, err := m.nvml.Read(bounded)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	usable, changed := m.inventory.update(node, err)
	for _, g := range usable {
		// Measured now, the cost is known when the first reservation needs it.
		go func() { _, _ = m.costs.Cost(ctx, g.costKey()) }()
	}
	if changed {
		select {
		case m.changed <- struct{}{}:
		default: // it is to be woken anyway
		}
	}
	return err
}

// costKey is what the cost of a context on this GPU depends on.
func (g *gpu) costKey() contextcost.GPU {
	return contextcost.GPU{UUID: g.UUID, Name: g.Name, DriverVersion: g.driverVersion}
}

// deviceGroups is what Nomad should know.
func (m *sliceMode) deviceGroups(ctx context.Context) []*ndevice.DeviceGroup {
	taken := m.takenElsewhere(ctx)
	groups := []*ndevice.DeviceGroup{}
	for _, g := range m.inventory.list() {
		groups = append(groups, deviceGroup(&g, m.sliceBytes, taken))
	}
	return groups
}

// takenElsewhere maps the slices that somebody outside Nomad uses to the claim
// that has them.
func (m *sliceMode) takenElsewhere(ctx context.Context) map[string]*claim.Claim {
	taken := make(map[string]*claim.Claim)
	claims, problems, err := m.ledger.List(ctx)
	if ctx.Err() != nil {
		return taken
	}
	if m.reported.changed("reading the ledger", err) && err != nil {
		m.logger.Error("could not read the ledger", "state_dir", m.stateDir, "error", err)
	}
	for _, problem := range problems {
		if m.reported.changed(problem.Path, errors.New(problem.Reason)) {
			m.logger.Warn("the ledger holds a file that is no claim", "file", problem.Path, "reason", problem.Reason)
		}
	}
	for _, c := range claims {
		if outsideNomad(c) {
			m.addTaken(taken, c)
		}
	}
	return taken
}

// outsideNomad tells whether a claim keeps its slices from Nomad. One that a container asked for itself does from the
// moment it is made.
func outsideNomad(c *claim.Claim) bool {
	switch c.Owner {
	case claim.OwnerNomad:
		return false
	case claim.OwnerExternal:
		return true
	}
	return c.Container != nil && c.Released.IsZero()
}

// addTaken notes the slices of a claim as taken. Where it goes by slices of
// another size, those are that have some of its memory.
func (m *sliceMode) addTaken(taken map[string]*claim.Claim, c *claim.Claim) {
	if c.SliceBytes == 0 || c.SliceBytes == m.sliceBytes {
		for _, slice := range c.Slices {
			taken[slice] = c
		}
		return
	}
	if m.reported.changed("slices of another size", errors.New(memsize.Format(c.SliceBytes))) {
		m.logger.Error("a claim goes by slices of another size: set slice_memory to the same in the plugin's options and "+
			"in the configuration file of tranche-runtime", "claim", c.ID, "owner", c.Owner,
			"slice_memory", memsize.Format(m.sliceBytes), "slice_memory_of_the_claim", memsize.Format(c.SliceBytes))
	}
	g, _ := m.inventory.find(c.GPU.UUID)
	for number := range g.slices {
		if c.Covers(g.UUID, number, m.sliceBytes) {
			taken[g.sliceID(number)] = c
		}
	}
}

// deviceGroup is a GPU as Nomad sees it.
func deviceGroup(g *gpu, sliceBytes uint64, taken map[string]*claim.Claim) *ndevice.DeviceGroup {
	group := &ndevice.DeviceGroup{
		Vendor:     vendor,
		Type:       sliceType,
		Name:       g.groupName(),
		Attributes: attributes(g, sliceBytes),
	}
	// A GPU without a single slice still shows one, so that its problem is seen.
	for number := range max(g.slices, 1) {
		slice := &ndevice.Device{
			ID:         g.sliceID(number),
			Healthy:    g.problem == "",
			HealthDesc: g.problem,
			HwLocality: &ndevice.DeviceLocality{PciBusID: g.PCIBusID},
		}
		if holder := taken[slice.ID]; holder != nil && slice.Healthy {
			slice.Healthy = false
			slice.HealthDesc = "taken outside Nomad by claim " + holder.ID + " (" + holder.Owner + ")"
		}
		group.Devices = append(group.Devices, slice)
	}
	group.Attributes["healthy_slices"] = structs.NewIntAttribute(healthy(group.Devices), "")
	return group
}

// healthy counts the slices that Nomad may give out. The count is part of the
// node's class for a reason: once Nomad has found too few healthy devices on one
// node, it looks at no other of that class, and a job that waits for one is not
// tried again when the devices are healthy again.
func healthy(devices []*ndevice.Device) (count int64) {
	for _, slice := range devices {
		if slice.Healthy {
			count++
		}
	}
	return count
}

// attributes describe a GPU. Those that tell one node from another of the same
// build begin with "unique.", which keeps them out of the node's class.
func attributes(g *gpu, sliceBytes uint64) map[string]*structs.Attribute {
	return map[string]*structs.Attribute{
		"model":              structs.NewStringAttribute(g.Name),
		"index":              structs.NewIntAttribute(int64(g.Index), ""),
		"memory":             structs.NewIntAttribute(int64(g.MemoryBytes>>20), structs.UnitMiB),
		"slice_memory":       structs.NewIntAttribute(int64(sliceBytes>>20), structs.UnitMiB),
		"slices":             structs.NewIntAttribute(int64(g.slices), ""),
		"driver_version":     structs.NewStringAttribute(g.driverVersion),
		"cuda_version":       decimalAttribute(g.cudaVersion),
		"compute_capability": decimalAttribute(g.ComputeCapability),
		"unique.uuid":        structs.NewStringAttribute(g.UUID),
		"unique.pci_bus_id":  structs.NewStringAttribute(g.PCIBusID),
	}
}

// decimalAttribute makes a number of a version with one point. Nomad takes
// "8.9" in a constraint for a number, and compares it with numbers only.
func decimalAttribute(text string) *structs.Attribute {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return structs.NewStringAttribute(text)
	}
	return structs.NewFloatAttribute(number, "")
}

// sweep releases the claims whose container is gone.
func (m *sliceMode) sweep(ctx context.Context) {
	released, err := m.ledger.Sweep(ctx)
	if ctx.Err() != nil {
		return
	}
	if m.reported.changed("sweeping the ledger", err) && err != nil {
		m.logger.Error("could not sweep the ledger", "state_dir", m.stateDir, "error", err)
	}
	for _, c := range released {
		m.logger.Info("released a claim whose container is gone", "claim", c.ID, "gpu", c.GPU.UUID, "slices", len(c.Slices))
	}
}
