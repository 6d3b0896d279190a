package driver

import (
	"errors"

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
