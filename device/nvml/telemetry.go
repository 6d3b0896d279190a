package nvml

import (
	"context"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Telemetry is what a GPU measures of itself. A field is nil if it is unknown: utilization in MIG mode, and errors without
// ECC.
type Telemetry struct {
	// PowerMilliwatts is the power that the GPU draws, PowerLimitMilliwatts its limit.
	PowerMilliwatts, PowerLimitMilliwatts *int64
	TemperatureCelsius                    *int64
	// EnergyMillijoules is what the GPU has drawn since the driver was loaded, since Volta.
	EnergyMillijoules *int64
	// GPUPercent and MemoryPercent are the shares of the last sample period in which a kernel ran, and in which memory was
	// read or written; EncoderPercent and DecoderPercent those of the video engines.
	GPUPercent, MemoryPercent      *int64
	EncoderPercent, DecoderPercent *int64
	// UsedBytes and BAR1UsedBytes are in use, of MemoryBytes and BAR1Bytes.
	UsedBytes, MemoryBytes   *int64
	BAR1UsedBytes, BAR1Bytes *int64
	// Corrected are errors that ECC has corrected since the last reset.
	Corrected *CorrectedErrors
}

// CorrectedErrors counts memory errors that were corrected.
type CorrectedErrors struct {
	L1Cache, L2Cache, Memory int64
}

var telemetryQueries = []query[Telemetry]{
	{"power usage", "nvmlDeviceGetPowerUsage", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		return number(d.GetPowerUsage()).into(&t.PowerMilliwatts)
	}},
	{"power limit", "nvmlDeviceGetEnforcedPowerLimit", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		return number(d.GetEnforcedPowerLimit()).into(&t.PowerLimitMilliwatts)
	}},
	{"temperature", "nvmlDeviceGetTemperature", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		return number(d.GetTemperature(gonvml.TEMPERATURE_GPU)).into(&t.TemperatureCelsius)
	}},
	{"energy", "nvmlDeviceGetTotalEnergyConsumption", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		return number(d.GetTotalEnergyConsumption()).into(&t.EnergyMillijoules)
	}},
	{"utilisation", "nvmlDeviceGetUtilizationRates", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		rates, ret := d.GetUtilizationRates()
		_ = number(rates.Memory, ret).into(&t.MemoryPercent)
		return number(rates.Gpu, ret).into(&t.GPUPercent)
	}},
	{"encoder utilisation", "nvmlDeviceGetEncoderUtilization", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		percent, _, ret := d.GetEncoderUtilization()
		return number(percent, ret).into(&t.EncoderPercent)
	}},
	{"decoder utilisation", "nvmlDeviceGetDecoderUtilization", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		percent, _, ret := d.GetDecoderUtilization()
		return number(percent, ret).into(&t.DecoderPercent)
	}},
	{"corrected ECC errors", "nvmlDeviceGetDetailedEccErrors", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		counts, ret := d.GetDetailedEccErrors(gonvml.MEMORY_ERROR_TYPE_CORRECTED, gonvml.VOLATILE_ECC)
		if ret == gonvml.SUCCESS {
			t.Corrected = &CorrectedErrors{
				L1Cache: int64(counts.L1Cache), L2Cache: int64(counts.L2Cache), Memory: int64(counts.DeviceMemory),
			}
		}
		return ret
	}},
}

// memoryQueries are the only queries that a MIG instance answers for itself.
var memoryQueries = []query[Telemetry]{
	{"memory", "nvmlDeviceGetMemoryInfo", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		memory, ret := d.GetMemoryInfo()
		_ = number(memory.Used, ret).into(&t.UsedBytes)
		return number(memory.Total, ret).into(&t.MemoryBytes)
	}},
	{"BAR1 memory", "nvmlDeviceGetBAR1MemoryInfo", func(d gonvml.Device, t *Telemetry) gonvml.Return {
		memory, ret := d.GetBAR1MemoryInfo()
		_ = number(memory.Bar1Used, ret).into(&t.BAR1UsedBytes)
		return number(memory.Bar1Total, ret).into(&t.BAR1Bytes)
	}},
}

// Telemetry implements Interface.
func (l *Library) Telemetry(ctx context.Context, uuid string) (*Telemetry, error) {
	return queryGPU(ctx, l, uuid, slices.Concat(telemetryQueries, memoryQueries))
}

// find returns the handle of the GPU with this UUID.
func (l *Library) find(uuid string) (gonvml.Device, error) {
	if err := l.start(); err != nil {
		return nil, err
	}
	device, ret := l.lib.DeviceGetHandleByUUID(uuid)
	if ret != gonvml.SUCCESS {
		return nil, failure("find the GPU "+uuid, ret)
	}
	return device, nil
}
