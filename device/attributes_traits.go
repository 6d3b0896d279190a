package device

import (
	"github.com/hashicorp/nomad/plugins/shared/structs"
)

// traitAttributes are nomad-device-nvidia's, with its names and units. Some are
// what a GPU measured when it was first asked: "power" is what it drew then, and
// the clocks are how fast it ran. They stay as they were, as they do there: each
// change would register the node anew.
func (g *gpu) traitAttributes() map[string]*structs.Attribute {
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

// addNumber adds what the GPU tells.
func addNumber(all map[string]*structs.Attribute, name string, value *int64, unitBytes int64, unit string) {
	if value != nil {
		all[name] = structs.NewIntAttribute(*value/unitBytes, unit)
	}
}

// addState adds a state as the text of NVML's number for it.
func addState(all map[string]*structs.Attribute, name string, on *bool) {
	switch {
	case on == nil:
	case *on:
		all[name] = structs.NewStringAttribute("1")
	default:
		all[name] = structs.NewStringAttribute("0")
	}
}

// laneMBPerS is what one lane of each generation of PCI Express carries, in the
// round numbers that nomad-device-nvidia goes by.
var laneMBPerS = map[int64]int64{3: 1024, 4: 2048, 5: 3072, 6: 4096}

// pciBandwidth is what the GPU's link carries at most, in MB/s; 0 where it
// doesn't say, or is older.
func (g *gpu) pciBandwidth() int64 {
	return orZero(g.PCIeWidth) * laneMBPerS[orZero(g.PCIeGeneration)]
}

// coresPerMultiprocessor is how many CUDA cores a multiprocessor has, by compute
// capability: NVML tells the cores only. The CUDA programming guide has them, as
// the throughput of 32-bit additions of floating-point numbers.
var coresPerMultiprocessor = map[string]int64{
	"5.0": 128, "5.2": 128, "6.0": 64, "6.1": 128, "7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.7": 128, "8.9": 128,
	"9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128, "12.1": 128,
}

// multiprocessors is how many the GPU has; 0 where that can't be told.
func (g *gpu) multiprocessors() int64 {
	if per := coresPerMultiprocessor[g.ComputeCapability]; per > 0 {
		return orZero(g.Cores) / per
	}
	return 0
}
