package spec

import (
	"fmt"
	goruntime "runtime"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestWithCPU(t *testing.T) {
	cases := []struct {
		shares int64
		total  float64
		want   uint64
	}{
		{100, 0, 100}, {1, 0, 2}, {300000, 0, 262144}, {1000, 12000, 1000},
		// A node of more MHz than there are shares: half of it is half of them.
		{262144, 2 * 262144, 131072}, {1, 2 * 262144, 2},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d of %.0f", c.shares, c.total), func(t *testing.T) {
			cfg := resourcesOf(drivers.LinuxResources{CPUShares: c.shares, CpusetCpus: "0,1"}, 0, 0)
			cpu := apply(t, withCPU(cfg, c.total)).Linux.Resources.CPU
			must.Eq(t, c.want, *cpu.Shares)
			must.Eq(t, "0,1", cpu.Cpus)
		})
	}
}

func TestWithCPUHardLimit(t *testing.T) {
	cases := []struct {
		name         string
		linux        drivers.LinuxResources
		ticksPerCore float64
		period       int64
		wantQuota    int64
		wantPeriod   uint64
	}{
		{"two fifths of a core", drivers.LinuxResources{CPUShares: 1000}, 2500, 0, 40000, 100000},
		{"two cores", drivers.LinuxResources{CPUShares: 5000, CpusetCpus: "2,3"}, 2500, 0, 200000, 100000},
		{"a period of the task's", drivers.LinuxResources{CPUShares: 1000}, 2500, 10000, 4000, 10000},
		{"less than the kernel allows", drivers.LinuxResources{CPUShares: 1}, 2500, 0, 1000, 100000},
		{"by the share of the node", drivers.LinuxResources{CPUShares: 1000, PercentTicks: 0.25}, 0, 0,
			int64(25000 * goruntime.NumCPU()), 100000},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			options := &TaskConfig{CPUHardLimit: true, CPUCFSPeriod: c.period}
			cfg := resourcesOf(c.linux, 0, 0)
			cpu := apply(t, withCPU(cfg, 0), withCPUHardLimit(cfg, options, c.ticksPerCore)).Linux.Resources.CPU
			must.Eq(t, c.wantQuota, *cpu.Quota)
			must.Eq(t, c.wantPeriod, *cpu.Period)
			must.Eq(t, uint64(max(2, c.linux.CPUShares)), *cpu.Shares)
		})
	}
	must.Nil(t, apply(t, withCPUHardLimit(resourcesOf(drivers.LinuxResources{CPUShares: 1}, 0, 0), &TaskConfig{}, 1)).
		Linux.Resources)
	_, err := tryApply(withCPUHardLimit(&drivers.TaskConfig{}, &TaskConfig{CPUHardLimit: true}, 2500))
	must.ErrorContains(t, err, "option cpu_hard_limit = true")
}
