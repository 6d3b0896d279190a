package nvml

import gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

// Traits are read once, when a GPU appears or comes back: what does not change while it is present, and power and clocks at
// that time. A field is nil if it is unknown.
type Traits struct {
	// PowerMilliwatts is the power that the GPU drew, GraphicsMHz and MemoryMHz are its clocks.
	PowerMilliwatts        *int64
	GraphicsMHz, MemoryMHz *int64
	// BAR1Bytes is the size of the window onto its memory on the PCI bus.
	BAR1Bytes *int64
	// PCIeWidth and PCIeGeneration are the maximum number of lanes of its link and their generation of PCI Express.
	PCIeWidth, PCIeGeneration *int64
	// DisplayMode is whether a display is connected, PersistenceMode whether the driver stays loaded while nothing uses the
	// GPU.
	DisplayMode, PersistenceMode *bool
	// Cores are the CUDA cores.
	Cores *int64
	// Addressing is how the GPU uses memory of malloc: AddressingNone, AddressingHMM or AddressingATS. Older drivers do not
	// report it.
	Addressing *int64
}

// The values of Traits.Addressing.
const (
	AddressingNone = int64(gonvml.DEVICE_ADDRESSING_MODE_NONE)
	AddressingHMM  = int64(gonvml.DEVICE_ADDRESSING_MODE_HMM)
	AddressingATS  = int64(gonvml.DEVICE_ADDRESSING_MODE_ATS)
)

// traitQueries read Traits.
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
	{"addressing mode", "nvmlDeviceGetAddressingMode", func(d gonvml.Device, t *Traits) gonvml.Return {
		mode, ret := d.GetAddressingMode()
		return number(mode.Value, ret).into(&t.Addressing)
	}},
}

// coresPerSM is the number of CUDA cores of a streaming multiprocessor, by compute capability.
var coresPerSM = map[string]int64{
	"5.0": 128, "5.2": 128, "6.0": 64, "6.1": 128, "7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.7": 128, "8.9": 128,
	"9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128, "12.1": 128,
}

// SMs returns the number of streaming multiprocessors of the GPU; 0 if it is unknown. NVML reports cores only.
func (g GPU) SMs() int64 {
	perSM := coresPerSM[g.ComputeCapability]
	if g.Cores == nil || perSM == 0 {
		return 0
	}
	return *g.Cores / perSM
}

// setSMs sets the number of multiprocessors, which is known by the number of cores.
func (g *GPU) setSMs(count int64) {
	if perSM := coresPerSM[g.ComputeCapability]; perSM > 0 {
		cores := count * perSM
		g.Cores = &cores
	}
}

// readTraits reads Traits, unless they were read before.
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

// keepTraits keeps the traits of the GPUs that answered, and of no others: one that returns may be a different device.
func (l *Library) keepTraits(gpus []GPU) {
	l.traits = make(map[string]Traits, len(gpus))
	for _, gpu := range gpus {
		l.traits[gpu.UUID] = gpu.Traits
	}
}
