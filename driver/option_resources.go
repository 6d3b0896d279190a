package driver

import (
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
)

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
