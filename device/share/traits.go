package share

import (
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// traitAttributes returns the attributes of nomad-device-nvidia, with its names and units. Some are measurements from when
// the GPU was found, such as "power" and the clocks. They are not updated, as there: each change would register the node
// again.
func (g *GPU) traitAttributes() map[string]*structs.Attribute {
	all := map[string]*structs.Attribute{
		"power":         structs.NewIntAttribute(orZero(g.PowerMilliwatts)/1000, structs.UnitW),
		"pci_bandwidth": structs.NewIntAttribute(g.pciBandwidth(), structs.UnitMBPerS),
	}
	addNumber(all, "cores_clock", g.GraphicsMHz, 1, structs.UnitMHz)
	addNumber(all, "memory_clock", g.MemoryMHz, 1, structs.UnitMHz)
	addNumber(all, "bar1", g.BAR1Bytes, 1<<20, structs.UnitMiB)
	addState(all, "display_state", g.DisplayMode)
	addState(all, "persistence_mode", g.PersistenceMode)
	return all
}

func orZero(value *int64) int64 {
	if value == nil {
		return 0
	}
	return *value
}

// addNumber adds an attribute unless its value is unknown.
func addNumber(all map[string]*structs.Attribute, name string, value *int64, unitBytes int64, unit string) {
	if value != nil {
		all[name] = structs.NewIntAttribute(*value/unitBytes, unit)
	}
}

// addState adds a state as the text of NVML's number for it, unless it is unknown.
func addState(all map[string]*structs.Attribute, name string, on *bool) {
	switch {
	case on == nil:
	case *on:
		all[name] = structs.NewStringAttribute("1")
	default:
		all[name] = structs.NewStringAttribute("0")
	}
}

// laneMBPerS is the bandwidth of one lane by generation of PCI Express, in the round numbers of nomad-device-nvidia.
var laneMBPerS = map[int64]int64{3: 1024, 4: 2048, 5: 3072, 6: 4096}

// pciBandwidth returns the maximum bandwidth of the GPU's link in MB/s; 0 if it is unknown or the link is older.
func (g *GPU) pciBandwidth() int64 {
	return orZero(g.PCIeWidth) * laneMBPerS[orZero(g.PCIeGeneration)]
}
