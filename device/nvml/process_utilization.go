package nvml

import (
	"context"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ProcessUtilization implements Interface. The ratios are of a GPU's multiprocessors, 0 to 1.
func (l *Library) ProcessUtilization(ctx context.Context, uuid string, since time.Time) (map[int]float64, error) {
	ratios, err := queryGPU(ctx, l, uuid, []query[map[int]float64]{{
		"utilisation of processes", "nvmlDeviceGetProcessUtilization",
		func(d gonvml.Device, ratios *map[int]float64) gonvml.Return {
			samples, ret := d.GetProcessUtilization(uint64(max(0, since.UnixMicro())))
			switch ret {
			case gonvml.SUCCESS, gonvml.ERROR_NOT_FOUND: // the latter if no process was busy
				*ratios = processRatios(samples, uint64(max(0, since.UnixMicro())))
			case gonvml.ERROR_INSUFFICIENT_SIZE: // a process has begun between the two calls
			default:
				return ret
			}
			return gonvml.SUCCESS
		},
	}})
	if err != nil {
		return nil, err
	}
	return *ratios, nil
}

// processRatios takes the newest sample of each process. NVML also returns samples that are older than what was requested.
func processRatios(samples []gonvml.ProcessUtilizationSample, sinceMicros uint64) map[int]float64 {
	ratios, newest := make(map[int]float64), make(map[int]uint64)
	for _, s := range samples {
		pid := int(s.Pid)
		if s.TimeStamp <= sinceMicros || s.TimeStamp < newest[pid] {
			continue
		}
		newest[pid] = s.TimeStamp
		ratios[pid] = min(1, float64(s.SmUtil)/100)
	}
	return ratios
}
