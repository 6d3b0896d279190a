package nvml

import (
	"context"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ProcessUtilization implements Interface.
func (l *Library) ProcessUtilization(ctx context.Context, uuid string, since time.Time) (map[int]Busy, error) {
	busy, err := queryGPU(ctx, l, uuid, []query[map[int]Busy]{{
		"utilisation of processes", "nvmlDeviceGetProcessUtilization",
		func(d gonvml.Device, busy *map[int]Busy) gonvml.Return {
			samples, ret := d.GetProcessUtilization(uint64(max(0, since.UnixMicro())))
			switch ret {
			case gonvml.SUCCESS, gonvml.ERROR_NOT_FOUND: // the latter if no process was busy
				*busy = busyProcesses(samples, uint64(max(0, since.UnixMicro())))
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
	return *busy, nil
}

// busyProcesses sums up the samples of each process. NVML also returns samples that are older than what was requested.
func busyProcesses(samples []gonvml.ProcessUtilizationSample, sinceMicros uint64) map[int]Busy {
	busy, newest := make(map[int]Busy), make(map[int]uint64)
	for _, s := range samples {
		if s.TimeStamp <= sinceMicros {
			continue
		}
		pid := int(s.Pid)
		b := busy[pid]
		b.Greatest = max(b.Greatest, ratio(max(s.SmUtil, s.MemUtil, s.EncUtil, s.DecUtil)))
		if s.TimeStamp >= newest[pid] {
			newest[pid], b.Multiprocessors = s.TimeStamp, ratio(s.SmUtil)
		}
		busy[pid] = b
	}
	return busy
}

func ratio(percent uint32) float64 { return min(1, float64(percent)/100) }
