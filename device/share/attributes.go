package share

import (
	"maps"
	"strconv"

	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// Attributes returns the attributes that describe a GPU in every mode. Those that nomad-device-nvidia has, too, have its
// names and units.
func (g *GPU) Attributes(isolation string) map[string]*structs.Attribute {
	all := g.traitAttributes()
	maps.Copy(all, map[string]*structs.Attribute{
		"model":              structs.NewStringAttribute(g.Name),
		"memory":             structs.NewIntAttribute(int64(g.MemoryBytes>>20), structs.UnitMiB),
		"driver_version":     structs.NewStringAttribute(g.DriverVersion),
		"cuda_version":       decimalAttribute(g.CUDAVersion),
		"compute_capability": decimalAttribute(g.ComputeCapability),
		"mode":               structs.NewStringAttribute(string(g.Mode)),
		"isolation":          structs.NewStringAttribute(isolation),
	})
	if count := g.SMs(); count > 0 {
		all["sm_count"] = structs.NewIntAttribute(count, "")
	}
	return all
}

// decimalAttribute returns a version of the form major.minor as a number. In a constraint, Nomad reads "8.9" as a number
// and compares it with numbers only.
func decimalAttribute(text string) *structs.Attribute {
	number, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return structs.NewStringAttribute(text)
	}
	return structs.NewFloatAttribute(number, "")
}
