package device

import (
	"maps"
	"strconv"

	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// attributes describe a GPU, whatever way it is shared. Names and units that
// nomad-device-nvidia has, too, are as they are there.
func (g *gpu) attributes(isolation string) map[string]*structs.Attribute {
	all := g.traitAttributes()
	maps.Copy(all, map[string]*structs.Attribute{
		"model":              structs.NewStringAttribute(g.Name),
		"memory":             structs.NewIntAttribute(int64(g.MemoryBytes>>20), structs.UnitMiB),
		"driver_version":     structs.NewStringAttribute(g.driverVersion),
		"cuda_version":       decimalAttribute(g.cudaVersion),
		"compute_capability": decimalAttribute(g.ComputeCapability),
		"mode":               structs.NewStringAttribute(string(g.mode)),
		"isolation":          structs.NewStringAttribute(isolation),
	})
	if count := g.multiprocessors(); count > 0 {
		all["sm_count"] = structs.NewIntAttribute(count, "")
	}
	return all
}

// addPlace adds what tells a group with one GPU from others. Attributes that
// begin with "unique." are left out of the node's class, which is the same for
// nodes of the same build.
func (g *gpu) addPlace(attributes map[string]*structs.Attribute) {
	attributes["index"] = structs.NewIntAttribute(int64(g.Index), "")
	attributes["unique.uuid"] = structs.NewStringAttribute(g.UUID)
	attributes["unique.pci_bus_id"] = structs.NewStringAttribute(g.PCIBusID)
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
