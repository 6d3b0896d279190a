package spec

import (
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// withCapabilities gives the process the capabilities that Nomad gives every task, as far as the operator allows them,
// with what the task adds and drops.
//
// A process that is not root loses them as it starts its program, as under docker: nothing is inheritable or ambient,
// so that only what a file in the image carries comes back.
func withCapabilities(options *TaskConfig, plugin *Config) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		names, err := options.capabilities(plugin)
		if err != nil {
			return err
		}
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: names, Effective: names, Permitted: names}
		return nil
	})
}

// capabilities returns the task's capabilities.
func (c *TaskConfig) capabilities(plugin *Config) ([]string, error) {
	err := errors.Join(checkCapabilityNames("option cap_add", c.CapAdd), checkCapabilityNames("option cap_drop", c.CapDrop))
	if err != nil {
		return nil, err
	}
	allowed := capabilities.New(plugin.AllowCaps)
	if missing := allowed.Difference(capabilities.New(c.CapAdd)); !missing.Empty() {
		return nil, fmt.Errorf("option cap_add = %q: this node does not allow %s, but only these: %s; the operator can "+
			"allow more with the plugin's allow_caps", c.CapAdd, missing, allowed)
	}
	names, err := capabilities.Calculate(capabilities.NomadDefaults(), plugin.AllowCaps, c.CapAdd, c.CapDrop)
	if err != nil {
		return nil, fmt.Errorf("options cap_add = %q and cap_drop = %q: %w", c.CapAdd, c.CapDrop, err)
	}
	return names, nil
}

// checkCapabilityNames makes sure that each name is "all" or a capability's: one that is misspelt in cap_drop would be
// kept without an error.
func checkCapabilityNames(option string, names []string) error {
	known := capabilities.New(append([]string{"all"}, cap.Known()...))
	if unknown := known.Difference(capabilities.New(names)); !unknown.Empty() {
		return fmt.Errorf("%s = %q: no capability is called %s; it may be \"all\" or a name of capabilities(7), such as "+
			"\"net_bind_service\"", option, names, unknown)
	}
	return nil
}

// checkCapabilities checks the options cap_add and cap_drop.
func (c *TaskConfig) checkCapabilities(plugin *Config) error {
	_, err := c.capabilities(plugin)
	return err
}

func (c *Config) checkAllowCaps() error {
	return checkCapabilityNames("plugin option allow_caps", c.AllowCaps)
}
