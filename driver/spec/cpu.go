package spec

import (
	"errors"
	"fmt"
	"math"
	goruntime "runtime"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
)

const (
	// The kernel's bounds on CPU shares.
	minCPUShares, maxCPUShares = 2, 262144
	// The kernel's bounds on the period of a hard limit, its least quota, and the usual period, in microseconds.
	minCFSPeriod, maxCFSPeriod = 1000, 1000000
	minCFSQuota                = 1000
	defaultCFSPeriod           = 100000
)

// withCPU sets the weight of the task among others, and its cores where it reserved some. totalTicks is the capacity of the
// node's cores together, in MHz; 0 where unknown.
func withCPU(cfg *drivers.TaskConfig, totalTicks float64) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if cfg.Resources == nil || cfg.Resources.LinuxResources == nil {
			return nil
		}
		linux := cfg.Resources.LinuxResources
		cpu := &specs.LinuxCPU{Cpus: linux.CpusetCpus}
		if linux.CPUShares > 0 {
			shares := cpuShares(linux.CPUShares, totalTicks)
			cpu.Shares = &shares
		}
		resources(s).CPU = cpu
		return nil
	})
}

// cpuShares returns a task's MHz as the kernel's shares. On a node that has more MHz than there are shares they are scaled, so
// that large tasks keep their proportion.
func cpuShares(mhz int64, totalTicks float64) uint64 {
	if totalTicks >= maxCPUShares {
		mhz = int64(float64(mhz) / totalTicks * maxCPUShares)
	}
	return uint64(min(max(mhz, minCPUShares), maxCPUShares))
}

// withCPUHardLimit makes the task's cpu a limit: so much of each period, and no more.
func withCPUHardLimit(cfg *drivers.TaskConfig, options *TaskConfig, ticksPerCore float64) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if !options.CPUHardLimit {
			return nil
		}
		period := options.CPUCFSPeriod
		if period == 0 {
			period = defaultCFSPeriod
		}
		cores := coresOf(cfg, ticksPerCore)
		if cores <= 0 {
			return errors.New("option cpu_hard_limit = true: Nomad does not say how much of a core the task's cpu is; leave " +
				"the option out")
		}
		quota := max(int64(math.Round(cores*float64(period))), minCFSQuota)
		return oci.WithCPUCFS(quota, uint64(period))(nil, nil, nil, s)
	})
}

// coresOf returns how many cores the task's cpu is. Where the agent does not state the capacity of a core, it is computed from
// the share of the node that Nomad gives, as the docker driver does.
func coresOf(cfg *drivers.TaskConfig, ticksPerCore float64) float64 {
	if cfg.Resources == nil || cfg.Resources.LinuxResources == nil {
		return 0
	}
	linux := cfg.Resources.LinuxResources
	if ticksPerCore > 0 {
		return float64(linux.CPUShares) / ticksPerCore
	}
	return linux.PercentTicks * float64(goruntime.NumCPU())
}

// checkCPU checks the options cpu_hard_limit and cpu_cfs_period.
func (c *TaskConfig) checkCPU() error {
	if p := c.CPUCFSPeriod; p != 0 && (p < minCFSPeriod || p > maxCFSPeriod) {
		return fmt.Errorf("option cpu_cfs_period = %d: must be from %d to %d microseconds", p, minCFSPeriod, maxCFSPeriod)
	}
	return nil
}
