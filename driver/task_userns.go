package driver

import (
	"context"
	"errors"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/tranche-gpu/tranche/driver/userns"
)

// What userns_mode may be; empty means host.
const (
	usernsAuto = userns.Auto
	usernsHost = namespaceHost
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
	return userns.WithUserNamespace(*ids, id, plugin.runtimeConfig().DriverRoot)
}

// withIOOwner notes who owns the pipes of the container's streams. It stands after what sets the user.
func withIOOwner(s *startup) oci.SpecOpts {
	return specOption(func(spec *Spec) error {
		s.ioOwner = userns.OwnerOfIO(s.hostIDs, spec)
		return nil
	})
}

// withRuntime says what runs the container. It stands after the option that makes the spec.
func withRuntime(s *startup) containerd.NewContainerOpts {
	return func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		return containerd.WithRuntime(s.runtime.shim, s.runtime.options(s.ioOwner))(ctx, client, c)
	}
}

// allocateHostIDs gives the task's container host IDs, and its directories to these, if it is to have a user namespace.
func (d *Driver) allocateHostIDs(ctx context.Context, s *startup) (release func(), err error) {
	if s.options.Userns != usernsAuto {
		return func() {}, nil
	}
	all, err := d.config.usernsRange()
	if err != nil {
		return nil, err
	}
	if s.hostIDs, release, err = d.hostIDs.Allocate(ctx, s.id, all); err != nil {
		return nil, err
	}
	if err := userns.HandOver(s.cfg, all, *s.hostIDs); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// usernsRange is the range of which each task with userns_mode = "auto" gets a part.
func (c *Config) usernsRange() (userns.Range, error) {
	return userns.NodeRange(c.UsernsRange, userns.NodeFiles)
}

// checkUserns checks the option userns_mode, and what goes with it: a namespace of the host's belongs to the host's
// users, and a container without them may not so much as mount what shows it.
func (c *TaskConfig) checkUserns(plugin *Config) error {
	switch c.Userns {
	case "", usernsHost:
		return nil
	case usernsAuto:
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
	_, err := plugin.usernsRange()
	return errors.Join(append(errs, err)...)
}

func (c *Config) checkUsernsRange() error {
	if c.UsernsRange == "" {
		return nil
	}
	_, err := userns.ParseRange(c.UsernsRange)
	return err
}
