package share

import (
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// unknown is the value of a statistic that a GPU does not report.
const unknown = "N/A"

// Measured returns the statistics of a GPU as a whole, with nomad-device-nvidia's names and units.
func Measured(t *nvml.Telemetry) Measurements {
	corrected := func(count func(*nvml.CorrectedErrors) int64) *int64 {
		if t.Corrected == nil {
			return nil
		}
		value := count(t.Corrected)
		return &value
	}
	return Measurements{
		"Power usage": ratio(t.PowerMilliwatts, t.PowerLimitMilliwatts, 1000, structs.UnitW,
			"Power that the GPU and its memory draw, of the most that they may"),
		"GPU utilization":     number(t.GPUPercent, "%", "Share of time in which a kernel ran on the GPU"),
		"Memory utilization":  number(t.MemoryPercent, "%", "Share of time in which the GPU's memory was read or written"),
		"Encoder utilization": number(t.EncoderPercent, "%", "Share of time in which the video encoder worked"),
		"Decoder utilization": number(t.DecoderPercent, "%", "Share of time in which the video decoder worked"),
		"Temperature":         number(t.TemperatureCelsius, "C", "Temperature of the GPU"),
		"Memory state": ratio(t.UsedBytes, t.MemoryBytes, 1<<20, structs.UnitMiB,
			"Memory of the GPU that is in use by all processes, of all it has"),
		"BAR1 buffer state": ratio(t.BAR1UsedBytes, t.BAR1Bytes, 1<<20, structs.UnitMiB,
			"Window onto the GPU's memory that is in use, of all of it"),
		"ECC L1 errors": number(corrected(func(e *nvml.CorrectedErrors) int64 { return e.L1Cache }), "#",
			"Errors in the L1 cache that ECC corrected since the last reset"),
		"ECC L2 errors": number(corrected(func(e *nvml.CorrectedErrors) int64 { return e.L2Cache }), "#",
			"Errors in the L2 cache that ECC corrected since the last reset"),
		"ECC memory errors": number(corrected(func(e *nvml.CorrectedErrors) int64 { return e.Memory }), "#",
			"Errors in memory that ECC corrected since the last reset"),
	}
}

// number returns a number as a statistic; the value nil is unknown.
func number(value *int64, unit, description string) *structs.StatValue {
	if value == nil {
		text := unknown
		return &structs.StatValue{StringVal: &text, Unit: unit, Desc: description}
	}
	return &structs.StatValue{IntNumeratorVal: value, Unit: unit, Desc: description}
}

// ratio returns a part of a whole as a statistic, in units of unitSize.
func ratio(part, whole *int64, unitSize int64, unit, description string) *structs.StatValue {
	if part == nil {
		return number(nil, unit, description)
	}
	n := *part / unitSize
	value := &structs.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: description}
	if whole != nil {
		of := *whole / unitSize
		value.IntDenominatorVal = &of
	}
	return value
}
