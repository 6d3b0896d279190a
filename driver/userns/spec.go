package userns

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// Auto is the userns_mode of a task with a user namespace.
const Auto = "auto"

// WithUserNamespace gives the container a user namespace in which its IDs are those of the host's range, and makes fit
// for it what the spec mounts. It is about all that the other options do, and so comes after them, the GPU's included:
// what it mounts itself is device nodes beneath /dev only, which cover nothing of the GPU's. dynamicUser is the host's ID
// that Nomad made up for the task, 0 for none.
func WithUserNamespace(ids Range, dynamicUser uint32, driverRoot string) oci.SpecOpts {
	mappings := ids.Mappings()
	if id := dynamicUser; id >= PerContainer && !ids.overlaps(Range{uint64(id), 1}) {
		// Nomad has set this ID of the host's aside for the task, and has no idea of the namespace.
		mappings = append(mappings, specs.LinuxIDMapping{ContainerID: id, HostID: id, Size: 1})
	}
	return oci.Compose(
		oci.WithUserNamespace(mappings, mappings),
		func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
			if !ownsNetwork(s) {
				bindSysfs(s)
			}
			if err := bindDevices(s, driverRoot); err != nil {
				return err
			}
			ocispec.KeepLockedFlags(s)
			return nil
		},
	)
}

// ownsNetwork reports whether the container gets a network namespace of its own, rather than joining one.
func ownsNetwork(s *specs.Spec) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.NetworkNamespace && n.Path == ""
	})
}

// bindSysfs shows the container the host's /sys instead of a new one. The kernel makes one only for who owns the network
// namespace that it would show, and that of the host or the group belongs to the host's users. Its files are the
// host's root's, whom the container does not have, so they cannot be written.
func bindSysfs(s *specs.Spec) {
	for i, m := range s.Mounts {
		if m.Type == "sysfs" {
			s.Mounts[i] = specs.Mount{Destination: m.Destination, Type: "bind", Source: "/sys",
				Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "ro"}}
		}
	}
}

// bindDevices mounts the nodes of those devices that the container has under another name than the host. In a user
// namespace nobody can make nodes, and a runtime mounts the host's of the same name for them, which is another device: a
// task that may have /dev/fuse could ask to have it as /dev/sda, and would get the disk.
func bindDevices(s *specs.Spec, driverRoot string) error {
	var kept []specs.LinuxDevice
	for _, device := range s.Linux.Devices {
		source, err := nodeOf(device, driverRoot)
		if err != nil {
			return err
		}
		if source == device.Path {
			kept = append(kept, device)
			continue
		}
		s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: source, Destination: device.Path,
			Options: []string{"bind", "rprivate", "nosuid", "noexec", "rw"}})
	}
	s.Linux.Devices = kept
	return nil
}

// nodeOf finds a node of the device that can be mounted: of the same name, in /dev or where the GPU's driver has its
// own, else whichever there is.
func nodeOf(device specs.LinuxDevice, driverRoot string) (string, error) {
	for _, path := range []string{device.Path, filepath.Join(driverRoot, device.Path)} {
		if node, err := oci.DeviceFromPath(path); err == nil && sameDevice(*node, device) {
			return path, nil
		}
	}
	host, err := oci.HostDevices()
	if err != nil {
		return "", fmt.Errorf("look for the node of device %s on the host: %w", device.Path, err)
	}
	at := slices.IndexFunc(host, func(node specs.LinuxDevice) bool { return sameDevice(node, device) })
	if at < 0 {
		return "", fmt.Errorf("device %s (%s %d:%d) has no node in the host's /dev, from where it could be mounted; a task "+
			"with userns_mode = \"auto\" cannot have it", device.Path, device.Type, device.Major, device.Minor)
	}
	return host[at].Path, nil
}

func sameDevice(a, b specs.LinuxDevice) bool {
	return a.Type == b.Type && a.Major == b.Major && a.Minor == b.Minor
}
