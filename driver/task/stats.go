package task

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	v2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/typeurl/v2"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/client"
)

// Stats streams the task's use of CPU and memory, as its cgroup reports it, until the task or ctx ends.
func (h *Handle) Stats(ctx context.Context, interval time.Duration) <-chan *drivers.TaskResourceUsage {
	if interval <= 0 {
		interval = time.Second
	}
	usages := make(chan *drivers.TaskResourceUsage)
	go h.streamStats(ctx, interval, usages)
	return usages
}

func (h *Handle) streamStats(ctx context.Context, interval time.Duration, usages chan<- *drivers.TaskResourceUsage) {
	defer close(usages)
	meter := cpuMeter{ticksPerCore: h.plugin.TicksPerCore}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if usage, err := h.usage(ctx, &meter); err != nil {
			h.plugin.Logger.Debug("no statistics of a task", "container", h.State.ContainerID, "error", err)
		} else {
			select {
			case usages <- usage:
			case <-h.ended:
				return
			case <-h.plugin.Client.Context().Done():
				return
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-ticker.C:
		case <-h.ended:
			return
		case <-h.plugin.Client.Context().Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// usage takes one sample.
func (h *Handle) usage(ctx context.Context, meter *cpuMeter) (*drivers.TaskResourceUsage, error) {
	ctx, cancel := context.WithTimeout(h.plugin.Client.Namespaced(ctx), client.CallTimeout)
	defer cancel()
	task, err := h.Load(ctx)
	if err != nil {
		return nil, err
	}
	metric, err := task.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	data, err := typeurl.UnmarshalAny(metric.Data)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	usage, err := readMetrics(data, now, meter)
	if err == nil && cgroup.Unified() {
		addPeak(usage.MemoryStats, filepath.Join(cgroup.Root, h.State.Cgroup, "memory.peak"))
	}
	if err != nil {
		return nil, err
	}
	return &drivers.TaskResourceUsage{ResourceUsage: usage, Timestamp: now.UTC().UnixNano()}, nil
}

// readMetrics translates a shim's statistics of a cgroup, of either version, to Nomad's terms.
func readMetrics(data any, now time.Time, meter *cpuMeter) (*drivers.ResourceUsage, error) {
	switch m := data.(type) {
	case *v1.Metrics:
		return &drivers.ResourceUsage{MemoryStats: memoryV1(m), CpuStats: cpuV1(m, now, meter)}, nil
	case *v2.Metrics:
		return &drivers.ResourceUsage{MemoryStats: memoryV2(m), CpuStats: cpuV2(m, now, meter)}, nil
	}
	return nil, fmt.Errorf("the runtime's statistics are of the unknown kind %T", data)
}

func memoryV1(m *v1.Metrics) *drivers.MemoryStats {
	memory := m.GetMemory()
	return &drivers.MemoryStats{
		RSS:            memory.GetTotalRSS(),
		Cache:          memory.GetTotalCache(),
		Swap:           swapV1(memory),
		MappedFile:     memory.GetTotalMappedFile(),
		Usage:          memory.GetUsage().GetUsage(),
		MaxUsage:       memory.GetUsage().GetMax(),
		KernelUsage:    memory.GetKernel().GetUsage(),
		KernelMaxUsage: memory.GetKernel().GetMax(),
		Measured: []string{"RSS", "Cache", "Swap", "Mapped File", "Usage", "Max Usage", "Kernel Usage",
			"Kernel Max Usage"},
	}
}

// swapV1 is the swap in use: cgroup v1 counts memory and swap together, where it counts swap at all.
func swapV1(memory *v1.MemoryStat) uint64 {
	both, alone := memory.GetSwap().GetUsage(), memory.GetUsage().GetUsage()
	if both < alone {
		return 0
	}
	return both - alone
}

func memoryV2(m *v2.Metrics) *drivers.MemoryStats {
	memory := m.GetMemory()
	stats := &drivers.MemoryStats{
		RSS:         memory.GetAnon(),
		Cache:       memory.GetFile(),
		Swap:        memory.GetSwapUsage(),
		MappedFile:  memory.GetFileMapped(),
		Usage:       memory.GetUsage(),
		MaxUsage:    memory.GetMaxUsage(),
		KernelUsage: memory.GetKernelStack() + memory.GetSlab(),
		Measured:    []string{"RSS", "Cache", "Swap", "Mapped File", "Usage", "Kernel Usage"},
	}
	if stats.MaxUsage > 0 {
		stats.Measured = append(stats.Measured, "Max Usage")
	}
	return stats
}

// addPeak adds the most memory that a cgroup has used, of which older shims, such as that of containerd 1.6, do not know. Kernels before 5.19
// have no such file.
func addPeak(stats *drivers.MemoryStats, file string) {
	if stats.MaxUsage > 0 {
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	if peak, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && peak > 0 {
		stats.MaxUsage, stats.Measured = peak, append(stats.Measured, "Max Usage")
	}
}

func cpuV1(m *v1.Metrics, now time.Time, meter *cpuMeter) *drivers.CpuStats {
	usage, throttling := m.GetCPU().GetUsage(), m.GetCPU().GetThrottling()
	stats := meter.measure(now, cpuTime{usage.GetTotal(), usage.GetUser(), usage.GetKernel()})
	stats.ThrottledPeriods, stats.ThrottledTime = throttling.GetThrottledPeriods(), throttling.GetThrottledTime()
	return stats
}

func cpuV2(m *v2.Metrics, now time.Time, meter *cpuMeter) *drivers.CpuStats {
	const nsPerUs = 1000
	cpu := m.GetCPU()
	stats := meter.measure(now, cpuTime{cpu.GetUsageUsec() * nsPerUs, cpu.GetUserUsec() * nsPerUs,
		cpu.GetSystemUsec() * nsPerUs})
	stats.ThrottledPeriods, stats.ThrottledTime = cpu.GetNrThrottled(), cpu.GetThrottledUsec()*nsPerUs
	return stats
}

// cpuTime is CPU time consumed so far, in nanoseconds.
type cpuTime struct{ total, user, system uint64 }

// cpuMeter makes rates out of counters.
type cpuMeter struct {
	ticksPerCore float64 // MHz
	last         cpuTime
	at           time.Time
}

// measure returns the use since the last call, in percent of one core; none on the first.
func (c *cpuMeter) measure(now time.Time, used cpuTime) *drivers.CpuStats {
	stats := &drivers.CpuStats{
		Measured: []string{"System Mode", "User Mode", "Percent", "Throttled Periods", "Throttled Time"},
	}
	if elapsed := now.Sub(c.at); !c.at.IsZero() && elapsed > 0 {
		percent := func(now, before uint64) float64 {
			if now < before {
				return 0
			}
			return float64(now-before) / float64(elapsed.Nanoseconds()) * 100
		}
		stats.Percent = percent(used.total, c.last.total)
		stats.UserMode = percent(used.user, c.last.user)
		stats.SystemMode = percent(used.system, c.last.system)
		stats.TotalTicks = stats.Percent / 100 * c.ticksPerCore
	}
	c.last, c.at = used, now
	return stats
}
