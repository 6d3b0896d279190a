package driver

import (
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// The kernel's bounds on CPU shares.
	minCPUShares, maxCPUShares = 2, 262144
	mib                        = 1 << 20
)

// withCgroup places the container where Nomad places tasks, so that its own accounting sees it.
func withCgroup(cfg *drivers.TaskConfig) oci.SpecOpts {
	return oci.WithCgroup(cgroupPath(cfg, cgroups.Mode() == cgroups.Unified))
}

// cgroupPath is the container's cgroup, relative to the root of the hierarchies.
//
// Nomad names one in CpusetCgroupPath. On cgroup v2 that is the task's own cgroup, which it has made. On v1 it is the
// shared or reserved part of the cpuset hierarchy, from which only Nomad's parent can be told; a task's cgroup in the
// other hierarchies is PARENT/ALLOC.TASK.
func cgroupPath(cfg *drivers.TaskConfig, unified bool) string {
	var given string
	if r := cfg.Resources; r != nil && r.LinuxResources != nil {
		given = r.LinuxResources.CpusetCgroupPath
	}
	scope := notInCgroup.Replace(cfg.AllocID + "." + cfg.Name)
	if rel, ok := strings.CutPrefix(given, cgroupRoot+"/"); ok && unified {
		return path.Clean("/" + rel)
	}
	if rel, ok := strings.CutPrefix(given, cgroupRoot+"/cpuset/"); ok && !unified {
		parent := path.Dir(path.Clean("/" + rel))
		if strings.HasSuffix(rel, "/"+scope) {
			parent = path.Dir(parent)
		}
		if parent != "/" {
			return path.Join(parent, scope)
		}
	}
	if unified {
		return path.Join("/nomad.slice/share.slice", scope+".scope")
	}
	return path.Join("/nomad", scope)
}

// notInCgroup keeps a task's name from leaving its cgroup's parent.
var notInCgroup = strings.NewReplacer("/", "_", "\x00", "_", "\n", "_")

// withCPU sets the weight of the task among others, and its cores where it reserved some.
func withCPU(cfg *drivers.TaskConfig) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if cfg.Resources == nil || cfg.Resources.LinuxResources == nil {
			return nil
		}
		linux := cfg.Resources.LinuxResources
		cpu := &specs.LinuxCPU{Cpus: linux.CpusetCpus}
		if linux.CPUShares > 0 {
			shares := uint64(min(max(linux.CPUShares, minCPUShares), maxCPUShares))
			cpu.Shares = &shares
		}
		resources(s).CPU = cpu
		return nil
	})
}

// withMemory sets the memory limit: memory_max where the task has one, with memory as what it gets back to under
// pressure, else memory. Swap is not had on top.
func withMemory(cfg *drivers.TaskConfig, limitSwap bool) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		limit, reservation := memoryBytes(cfg)
		if limit <= 0 {
			return nil
		}
		memory := &specs.LinuxMemory{Limit: &limit}
		if limitSwap {
			memory.Swap = &limit
		}
		if reservation > 0 {
			memory.Reservation = &reservation
		}
		resources(s).Memory = memory
		return nil
	})
}

// memoryBytes is the task's memory limit, and what of it is reserved where that is less.
func memoryBytes(cfg *drivers.TaskConfig) (limit, reservation int64) {
	if cfg.Resources == nil {
		return 0, 0
	}
	if linux := cfg.Resources.LinuxResources; linux != nil {
		limit = linux.MemoryLimitBytes
	}
	if nomad := cfg.Resources.NomadResources; nomad != nil {
		if nomad.Memory.MemoryMaxMB > nomad.Memory.MemoryMB {
			reservation = nomad.Memory.MemoryMB * mib
		}
		limit = max(limit, nomad.Memory.MemoryMaxMB*mib)
		if limit <= 0 {
			limit = nomad.Memory.MemoryMB * mib
		}
	}
	return limit, reservation
}

// hostAccountsSwap says whether the kernel can limit memory and swap together. On cgroup v1 that is a boot option, and
// runc fails where it is set but not there.
func hostAccountsSwap() bool {
	if cgroups.Mode() == cgroups.Unified {
		return true
	}
	_, err := os.Stat(filepath.Join(cgroupRoot, "memory/memory.memsw.limit_in_bytes"))
	return err == nil
}

// withCgroupMount lets programs read their limits, as language runtimes do to size themselves.
var withCgroupMount = oci.WithMounts([]specs.Mount{{
	Destination: cgroupRoot,
	Type:        "cgroup",
	Source:      "cgroup",
	Options:     []string{"ro", "nosuid", "noexec", "nodev"},
}})

func resources(s *Spec) *specs.LinuxResources {
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	if s.Linux.Resources == nil {
		s.Linux.Resources = &specs.LinuxResources{}
	}
	return s.Linux.Resources
}

// checkResources checks the options about CPU, memory and processes.
func (c *TaskConfig) checkResources(*Config) error { return nil }
