package userns

import (
	"github.com/opencontainers/runtime-spec/specs-go"
)

// IOOwner are the IDs on the host to which the pipes of a container's streams belong. The zero value is root.
type IOOwner struct{ UID, GID uint32 }

// OwnerOfIO returns whose the pipes are to be. The spec says who the process is. runc gives them to the process's user
// itself, but in a user namespace it may not: without this, a program could write to its stdout and not open /dev/stdout, to
// which images link their logs.
func OwnerOfIO(ids *Range, s *specs.Spec) IOOwner {
	if ids == nil {
		return IOOwner{}
	}
	user := s.Process.User
	return IOOwner{hostID(s.Linux.UIDMappings, user.UID), hostID(s.Linux.GIDMappings, user.GID)}
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
