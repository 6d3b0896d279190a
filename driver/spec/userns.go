package spec

import (
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/tranche-gpu/tranche/driver/userns"
)

// withUserNamespace gives the container its user namespace, if it has host IDs.
func withUserNamespace(ids *userns.Range, taskUser string, plugin *Config) oci.SpecOpts {
	if ids == nil {
		return unchanged
	}
	id, ok := plugin.dynamicUser(taskUser)
	if !ok {
		id = 0
	}
	return userns.WithUserNamespace(*ids, id, plugin.RuntimeConfig().DriverRoot)
}

// HostIDs returns the range of which each task with userns_mode = "auto" gets a part.
func (c *Config) HostIDs() (userns.Range, error) {
	return userns.NodeRange(c.UsernsRange, userns.NodeFiles)
}

// checkUserns checks the option userns_mode, and what goes with it: a namespace of the host's belongs to the host's
// users, and a container without them may not so much as mount what shows it.
func (c *TaskConfig) checkUserns(plugin *Config) error {
	switch c.Userns {
	case "", namespaceHost:
		return nil
	case userns.Auto:
	default:
		return fmt.Errorf("option userns_mode = %q: must be \"host\", which is the default, or \"auto\"", c.Userns)
	}
	var errs []error
	for option, set := range map[string]bool{
		"privileged = true":   c.Privileged,
		"pid_mode = \"host\"": c.PidMode == namespaceHost,
		"ipc_mode = \"host\"": c.IPCMode == namespaceHost,
	} {
		if set {
			errs = append(errs, fmt.Errorf("option userns_mode = %q: does not go with %s; leave one of the two out",
				c.Userns, option))
		}
	}
	_, err := plugin.HostIDs()
	return errors.Join(append(errs, err)...)
}

func (c *Config) checkUsernsRange() error {
	if c.UsernsRange == "" {
		return nil
	}
	_, err := userns.ParseRange(c.UsernsRange)
	return err
}
