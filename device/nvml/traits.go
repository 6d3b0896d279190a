package nvml

import gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

// Traits are what is asked of a GPU once, when it appears or comes back: what
// doesn't change as long as it is there, and what power and clocks were then.
// A field is nil where the GPU doesn't tell.
type Traits struct {
	// PowerMilliwatts is what the GPU drew, GraphicsMHz and MemoryMHz are how
	// fast it ran, when it was asked.
	PowerMilliwatts        *int64
	GraphicsMHz, MemoryMHz *int64
	// BAR1Bytes is the size of the window through which the bus sees its memory.
	BAR1Bytes *int64
	// PCIeWidth is how many lanes its link may have, PCIeGeneration of which
	// generation of PCI Express.
	PCIeWidth, PCIeGeneration *int64
	// DisplayMode tells whether a display is connected, PersistenceMode whether
	// the driver stays loaded while nobody uses the GPU.
	DisplayMode, PersistenceMode *bool
	// Cores are the CUDA cores.
	Cores *int64
}

// traitQueries fill in Traits.
var traitQueries = []query[Traits]{
	{"power usage", "nvmlDeviceGetPowerUsage", func(d gonvml.Device, t *Traits) gonvml.Return {
		return number(d.GetPowerUsage()).into(&t.PowerMilliwatts)
	}},
	{"graphics clock", "nvmlDeviceGetClockInfo", func(d gonvml.Device, t *Traits) gonvml.Return {
		return number(d.GetClockInfo(gonvml.CLOCK_GRAPHICS)).into(&t.GraphicsMHz)
	}},
	{"memory clock", "nvmlDeviceGetClockInfo", func(d gonvml.Device, t *Traits) gonvml.Return {
		return number(d.GetClockInfo(gonvml.CLOCK_MEM)).into(&t.MemoryMHz)
	}},
	{"BAR1 memory", "nvmlDeviceGetBAR1MemoryInfo", func(d gonvml.Device, t *Traits) gonvml.Return {
		memory, ret := d.GetBAR1MemoryInfo()
		return number(memory.Bar1Total, ret).into(&t.BAR1Bytes)
	}},
	{"PCIe width", "nvmlDeviceGetMaxPcieLinkWidth", func(d gonvml.Device, t *Traits) gonvml.Return {
		return number(d.GetMaxPcieLinkWidth()).into(&t.PCIeWidth)
	}},
	{"PCIe generation", "nvmlDeviceGetMaxPcieLinkGeneration", func(d gonvml.Device, t *Traits) gonvml.Return {
		return number(d.GetMaxPcieLinkGeneration()).into(&t.PCIeGeneration)
	}},
	{"display mode", "nvmlDeviceGetDisplayMode", func(d gonvml.Device, t *Traits) gonvml.Return {
		return onOff(d.GetDisplayMode()).into(&t.DisplayMode)
	}},
	{"persistence mode", "nvmlDeviceGetPersistenceMode", func(d gonvml.Device, t *Traits) gonvml.Return {
		return onOff(d.GetPersistenceMode()).into(&t.PersistenceMode)
	}},
	{"number of cores", "nvmlDeviceGetNumGpuCores", func(d gonvml.Device, t *Traits) gonvml.Return {
		return number(d.GetNumGpuCores()).into(&t.Cores)
	}},
}

// coresPerSM is how many CUDA cores a streaming multiprocessor has, by compute
// capability.
var coresPerSM = map[string]int64{
	"5.0": 128, "5.2": 128, "6.0": 64, "6.1": 128, "7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.7": 128, "8.9": 128,
	"9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128, "12.1": 128,
}

// SMs is how many streaming multiprocessors the GPU has, 0 where that can't be
// told: NVML knows cores only.
func (g GPU) SMs() int64 {
	perSM := coresPerSM[g.ComputeCapability]
	if g.Cores == nil || perSM == 0 {
		return 0
	}
	return *g.Cores / perSM
}

// readTraits asks for what is asked once.
func (l *Library) readTraits(device gonvml.Device, gpu *GPU) error {
	if known, ok := l.traits[gpu.UUID]; ok {
		gpu.Traits = known
		return nil
	}
	var traits Traits
	if err := queryAll(l, device, gpu.UUID, traitQueries, &traits); err != nil {
		return err
	}
	gpu.Traits = traits
	return nil
}

// keepTraits remembers the traits of the GPUs that answered, and of no others:
// one that returns may have been changed meanwhile.
func (l *Library) keepTraits(gpus []GPU) {
	l.traits = make(map[string]Traits, len(gpus))
	for _, gpu := range gpus {
		l.traits[gpu.UUID] = gpu.Traits
	}
}
