package driver

import (
	"context"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// ioOwner are the IDs on the host to which the pipes of a container's streams belong. The zero value is root.
type ioOwner struct{ uid, gid uint32 }

// withIOOwner notes whose the pipes are to be, when the spec says who the process is. runc gives them to the process's
// user itself, but in a user namespace it may not: without this, a program could write to its stdout and not open
// /dev/stdout, to which images link their logs.
func withIOOwner(s *startup) oci.SpecOpts {
	return specOption(func(spec *Spec) error {
		s.ioOwner = ioOwner{}
		if s.hostIDs != nil {
			user := spec.Process.User
			s.ioOwner = ioOwner{hostID(spec.Linux.UIDMappings, user.UID), hostID(spec.Linux.GIDMappings, user.GID)}
		}
		return nil
	})
}

// hostID is the host's ID for one of the container's; root's where it has none, with which the container will not start.
func hostID(mappings []specs.LinuxIDMapping, id uint32) uint32 {
	for _, m := range mappings {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return m.HostID + id - m.ContainerID
		}
	}
	return 0
}

// withRuntime says what runs the container. It stands after the option that makes the spec.
func withRuntime(s *startup) containerd.NewContainerOpts {
	return func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		return containerd.WithRuntime(s.runtime.shim, s.runtime.options(s.ioOwner))(ctx, client, c)
	}
}
