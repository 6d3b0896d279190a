package driver

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// What userns_mode may be; empty means host.
const (
	usernsAuto = "auto"
	usernsHost = namespaceHost
)

// withUserNamespace gives the container a user namespace in which its IDs are those of the host's range, and makes fit
// for it what the spec mounts. It is about all that the other options do, and so comes after them, the GPU's included:
// what it mounts itself is device nodes beneath /dev only, which cover nothing of the GPU's.
func withUserNamespace(ids *idRange, taskUser string, plugin *Config) oci.SpecOpts {
	if ids == nil {
		return unchanged
	}
	mappings := ids.mappings()
	if id, ok := plugin.dynamicUser(taskUser); ok && id >= idsPerContainer && !ids.overlaps(idRange{uint64(id), 1}) {
		// Nomad has set this ID of the host's aside for the task, and has no idea of the namespace.
		mappings = append(mappings, specs.LinuxIDMapping{ContainerID: id, HostID: id, Size: 1})
	}
	return oci.Compose(
		oci.WithUserNamespace(mappings, mappings),
		specOption(func(s *Spec) error {
			if !ownsNetwork(s) {
				bindSysfs(s)
			}
			keepLockedFlags(s)
			return bindDevices(s, plugin.runtimeConfig().DriverRoot)
		}),
	)
}

// ownsNetwork says whether the container gets a network namespace of its own, rather than joining one.
func ownsNetwork(s *Spec) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.NetworkNamespace && n.Path == ""
	})
}

// bindSysfs shows the container the host's /sys instead of a new one. The kernel makes one only for who owns the network
// namespace that it would show, and that of the host or the group belongs to the host's users. Its files are the
// host's root's, whom the container does not have, so they cannot be written.
func bindSysfs(s *Spec) {
	for i, m := range s.Mounts {
		if m.Type == "sysfs" {
			s.Mounts[i] = specs.Mount{Destination: m.Destination, Type: "bind", Source: "/sys",
				Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "ro"}}
		}
	}
}

// keepLockedFlags repeats what the source of a read-only bind mount is mounted with. In a user namespace the kernel
// takes no such flag away, and making the mount read-only without naming them would be to take them away. Newer
// runtimes see to that themselves, runc 1.1 does not.
func keepLockedFlags(s *Spec) {
	for i, m := range s.Mounts {
		var stat unix.Statfs_t
		if m.Type != "bind" || !slices.Contains(m.Options, "ro") || unix.Statfs(m.Source, &stat) != nil {
			continue
		}
		for flag, option := range map[int64]string{
			unix.ST_NOSUID: "nosuid", unix.ST_NODEV: "nodev", unix.ST_NOEXEC: "noexec",
		} {
			if stat.Flags&flag != 0 && !slices.Contains(m.Options, option) {
				s.Mounts[i].Options = append(slices.Clone(s.Mounts[i].Options), option)
			}
		}
	}
}

// bindDevices mounts the nodes of those devices that the container has under another name than the host. In a user
// namespace nobody can make nodes, and a runtime mounts the host's of the same name for them, which is another device: a
// task that may have /dev/fuse could ask to have it as /dev/sda, and would get the disk.
func bindDevices(s *Spec, driverRoot string) error {
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
	_, err := plugin.usernsRange(subIDs)
	return errors.Join(append(errs, err)...)
}

// subordinateIDs are the files in which a node's administrator sets ranges of IDs aside.
type subordinateIDs struct{ users, groups string }

var subIDs = subordinateIDs{"/etc/subuid", "/etc/subgid"}

// subIDOwner is in whose name these files set IDs aside for containers that get a range each, as for Podman's
// --userns=auto.
const subIDOwner = "containers"

// usernsRange is the range of which each task with userns_mode = "auto" gets a part: the plugin's userns_range, else
// what the node sets aside for containers.
func (c *Config) usernsRange(files subordinateIDs) (idRange, error) {
	if c.UsernsRange != "" {
		return parseIDRange(c.UsernsRange)
	}
	const advice = `; set the plugin's userns_range, as in "1000000:6553600", or set aside the same range of IDs for the ` +
		`user "containers" in /etc/subuid and /etc/subgid`
	users, err := readSubIDs(files.users)
	if err != nil {
		return idRange{}, fmt.Errorf("option userns_mode = \"auto\": no IDs are set aside for it on this node: %w%s",
			err, advice)
	}
	groups, err := readSubIDs(files.groups)
	if err != nil || users != groups {
		return idRange{}, errors.Join(fmt.Errorf("option userns_mode = \"auto\": the IDs set aside for users and for groups "+
			"on this node are not the same%s", advice), err)
	}
	return users, users.check("the range of \"" + subIDOwner + "\" in " + files.users)
}

// parseIDRange reads "FIRST:COUNT".
func parseIDRange(given string) (idRange, error) {
	option := fmt.Sprintf("plugin option userns_range = %q", given)
	first, count, ok := strings.Cut(given, ":")
	firstID, errFirst := strconv.ParseUint(first, 10, 32)
	number, errCount := strconv.ParseUint(count, 10, 32)
	if !ok || errFirst != nil || errCount != nil {
		return idRange{}, fmt.Errorf("%s: must be FIRST:COUNT, such as \"1000000:6553600\"", option)
	}
	r := idRange{firstID, number}
	return r, r.check(option)
}

// check makes sure that containers can be given IDs of the range, and none that somebody on the host may have.
func (r idRange) check(what string) error {
	switch {
	case r.first < idsPerContainer:
		return fmt.Errorf("%s: must begin at %d or later, after the IDs of the host's own users", what, idsPerContainer)
	case r.count < idsPerContainer:
		return fmt.Errorf("%s: must hold %d IDs at least, which is what one container gets", what, idsPerContainer)
	case r.first+r.count > math.MaxUint32:
		return fmt.Errorf("%s: must end before %d, the kernel's last ID", what, uint32(math.MaxUint32))
	}
	return nil
}

func (c *Config) checkUsernsRange() error {
	if c.UsernsRange == "" {
		return nil
	}
	_, err := parseIDRange(c.UsernsRange)
	return err
}

// readSubIDs reads the first range that a file sets aside for containers.
func readSubIDs(file string) (idRange, error) {
	found, err := user.ParseSubIDFileFilter(file, func(s user.SubID) bool { return s.Name == subIDOwner })
	if err != nil {
		return idRange{}, err
	}
	if len(found) == 0 || found[0].SubID < 0 || found[0].Count < 0 {
		return idRange{}, fmt.Errorf("%s has no range for %q", file, subIDOwner)
	}
	return idRange{uint64(found[0].SubID), uint64(found[0].Count)}, nil
}
