package device

import (
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// notTold is what stands for a number that a GPU does not tell.
const notTold = "N/A"

// gpuStatistics are those of a GPU as a whole, by nomad-device-nvidia's names and
// in its units.
func gpuStatistics(t *nvml.Telemetry) measurements {
	corrected := func(count func(*nvml.CorrectedErrors) int64) *int64 {
		if t.Corrected == nil {
			return nil
		}
		value := count(t.Corrected)
		return &value
	}
	return measurements{
		"Power usage": ratio(t.PowerMilliwatts, t.PowerLimitMilliwatts, 1000, structs.UnitW,
			"Power that the GPU and its memory draw, of the most that they may"),
		"GPU utilization":     told(t.GPUPercent, "%", "Share of time in which a kernel ran on the GPU"),
		"Memory utilization":  told(t.MemoryPercent, "%", "Share of time in which the GPU's memory was read or written"),
		"Encoder utilization": told(t.EncoderPercent, "%", "Share of time in which the video encoder worked"),
		"Decoder utilization": told(t.DecoderPercent, "%", "Share of time in which the video decoder worked"),
		"Temperature":         told(t.TemperatureCelsius, "C", "Temperature of the GPU"),
		"Memory state": ratio(t.UsedBytes, t.MemoryBytes, 1<<20, structs.UnitMiB,
			"Memory of the GPU that is in use by all processes, of all it has"),
		"BAR1 buffer state": ratio(t.BAR1UsedBytes, t.BAR1Bytes, 1<<20, structs.UnitMiB,
			"Window onto the GPU's memory that is in use, of all of it"),
		"ECC L1 errors": told(corrected(func(e *nvml.CorrectedErrors) int64 { return e.L1Cache }), "#",
			"Errors in the L1 cache that ECC corrected since the last reset"),
		"ECC L2 errors": told(corrected(func(e *nvml.CorrectedErrors) int64 { return e.L2Cache }), "#",
			"Errors in the L2 cache that ECC corrected since the last reset"),
		"ECC memory errors": told(corrected(func(e *nvml.CorrectedErrors) int64 { return e.Memory }), "#",
			"Errors in memory that ECC corrected since the last reset"),
	}
}

// told is a number, or says that it is not told.
func told(value *int64, unit, description string) *structs.StatValue {
	if value == nil {
		text := notTold
		return &structs.StatValue{StringVal: &text, Unit: unit, Desc: description}
	}
	return &structs.StatValue{IntNumeratorVal: value, Unit: unit, Desc: description}
}

// ratio is a part of a whole, in units of so many.
func ratio(part, whole *int64, unitSize int64, unit, description string) *structs.StatValue {
	if part == nil {
		return told(nil, unit, description)
	}
	n := *part / unitSize
	value := &structs.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: description}
	if whole != nil {
		of := *whole / unitSize
		value.IntDenominatorVal = &of
	}
	return value
}
