package task

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/shoenig/test/must"
)

// The shim of containerd 1.6 does not say what a cgroup's peak was, the kernel does.
func TestAddPeak(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.peak")
	without := memoryV2(&v2.Metrics{Memory: &v2.MemoryStat{Usage: 30}})
	addPeak(without, file)
	must.Zero(t, without.MaxUsage) // a kernel that does not know it
	must.NoError(t, os.WriteFile(file, []byte("4096\n"), 0o644))
	addPeak(without, file)
	must.Eq(t, 4096, without.MaxUsage)
	must.SliceContains(t, without.Measured, "Max Usage")
	with := memoryV2(&v2.Metrics{Memory: &v2.MemoryStat{Usage: 30, MaxUsage: 40}})
	addPeak(with, file)
	must.Eq(t, 40, with.MaxUsage)
	must.Eq(t, without.Measured, with.Measured)
}

func TestReadMetrics(t *testing.T) {
	start := time.Unix(1000, 0)
	v1At := func(ns uint64) *v1.Metrics {
		return &v1.Metrics{
			CPU: &v1.CPUStat{
				Usage:      &v1.CPUUsage{Total: ns, User: ns / 2, Kernel: ns / 4},
				Throttling: &v1.Throttle{ThrottledPeriods: 3, ThrottledTime: 4},
			},
			Memory: &v1.MemoryStat{TotalRSS: 10, TotalCache: 20, Usage: &v1.MemoryEntry{Usage: 30, Max: 40},
				Swap: &v1.MemoryEntry{Usage: 35}},
		}
	}
	v2At := func(ns uint64) *v2.Metrics {
		return &v2.Metrics{
			CPU: &v2.CPUStat{UsageUsec: ns / 1000, UserUsec: ns / 2000, SystemUsec: ns / 4000, NrThrottled: 3,
				ThrottledUsec: 4},
			Memory: &v2.MemoryStat{Anon: 10, File: 20, Usage: 30, MaxUsage: 40, SwapUsage: 5},
		}
	}
	for name, at := range map[string]func(uint64) any{
		"cgroup v1": func(ns uint64) any { return v1At(ns) },
		"cgroup v2": func(ns uint64) any { return v2At(ns) },
	} {
		t.Run(name, func(t *testing.T) {
			meter := cpuMeter{ticksPerCore: 2000}
			first, err := readMetrics(at(5e9), start, &meter)
			must.NoError(t, err)
			must.Zero(t, first.CpuStats.Percent) // Nothing to compare with yet.
			next, err := readMetrics(at(6e9), start.Add(2*time.Second), &meter)
			must.NoError(t, err)
			must.Eq(t, 50, next.CpuStats.Percent)
			must.Eq(t, 25, next.CpuStats.UserMode)
			must.Eq(t, 12.5, next.CpuStats.SystemMode)
			must.Eq(t, 1000, next.CpuStats.TotalTicks)
			must.Eq(t, 3, next.CpuStats.ThrottledPeriods)
			must.Eq(t, 10, next.MemoryStats.RSS)
			must.Eq(t, 20, next.MemoryStats.Cache)
			must.Eq(t, 30, next.MemoryStats.Usage)
			must.Eq(t, 40, next.MemoryStats.MaxUsage)
			must.Eq(t, 5, next.MemoryStats.Swap)
		})
	}
	must.SliceContains(t, memoryV2(v2At(1)).Measured, "Max Usage")
	must.SliceNotContains(t, memoryV2(&v2.Metrics{}).Measured, "Max Usage") // a kernel that does not know it

	_, err := readMetrics("nonsense", start, &cpuMeter{})
	must.ErrorContains(t, err, "unknown kind string")
}
