package driver

import (
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// withDevices adds the devices that Nomad's device plugins give.
func withDevices(cfg *drivers.TaskConfig) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		resources(s) // WithDevices takes them for granted.
		for _, device := range cfg.Devices {
			err := oci.WithDevices(device.HostPath, device.TaskPath, device.Permissions)(nil, nil, nil, s)
			if err != nil {
				return fmt.Errorf("add device %s of the host as %s: %w", device.HostPath, device.TaskPath, err)
			}
		}
		return nil
	})
}

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
