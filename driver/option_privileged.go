package driver

import (
	"errors"

	"github.com/containerd/containerd/v2/pkg/oci"
)

// withPrivileged takes from a privileged task's container all that separates it from the host but its namespaces: it
// has every capability that the plugin has, every device of the host, and /proc and /sys as they are. What security_opt
// asks for comes after it, and holds.
//
// The host's devices include those of its GPUs, so that a privileged task can use a GPU beyond its claim if it sets out
// to; an operator who allows privileged tasks trusts them with the whole node. the GPU stays the last option all the
// same: a program that does as usual gets the claim's GPU, by way of the shadow library.
func withPrivileged(options *TaskConfig) oci.SpecOpts {
	if !options.Privileged {
		return unchanged
	}
	return oci.Compose(oci.WithPrivileged, oci.WithHostDevices, oci.WithAllDevicesAllowed)
}

// checkPrivileged checks the option privileged.
func (c *TaskConfig) checkPrivileged(plugin *Config) error {
	if c.Privileged && !plugin.AllowPrivileged {
		return errors.New("option privileged = true: this node allows no privileged tasks, only false; the operator can " +
			"allow them with the plugin's allow_privileged")
	}
	return nil
}
