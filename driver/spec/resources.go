package spec

import (
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/cgroup"
)

// withCgroup places the container where Nomad places tasks, so that its own accounting sees it.
func withCgroup(cfg *drivers.TaskConfig) oci.SpecOpts {
	return oci.WithCgroup(cgroup.Path(cfg, cgroup.Unified()))
}

// withCgroupMount lets programs read their limits, as language runtimes do to size themselves.
var withCgroupMount = oci.WithMounts([]specs.Mount{{
	Destination: cgroup.Root,
	Type:        "cgroup",
	Source:      "cgroup",
	Options:     []string{"ro", "nosuid", "noexec", "nodev"},
}})

// resources returns the resources of the spec, which it makes if there are none.
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
func (c *TaskConfig) checkResources(plugin *Config) error {
	return errors.Join(c.checkCPU(), c.checkMemory(), c.checkPidsLimit(plugin), c.checkShmSize())
}

// maxOOMScoreAdj is the kernel's bound. Values below zero would let a task survive at the cost of others, and of the node.
const maxOOMScoreAdj = 1000

// withOOMScoreAdj sets how soon the kernel ends the task's processes when the node's memory is short: the task's value,
// else the plugin's. It is always set: containerd is usually protected, and its children would be so as well.
func withOOMScoreAdj(options *TaskConfig, plugin *Config) oci.SpecOpts {
	adj := int(options.OOMScoreAdj)
	if adj == 0 {
		adj = int(plugin.OOMScoreAdj)
	}
	return specOption(func(s *Spec) error {
		s.Process.OOMScoreAdj = &adj
		return nil
	})
}

// checkOOMScoreAdj checks the option of a task, or of the plugin.
func checkOOMScoreAdj(option string, value int64) error {
	if value < 0 || value > maxOOMScoreAdj {
		return fmt.Errorf("%s = %d: must be from 0 to %d, at which it is ended first", option, value, maxOOMScoreAdj)
	}
	return nil
}
