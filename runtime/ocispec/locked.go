package ocispec

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// lockedFlags are the flags of a mount that a user namespace can't take away, by what statfs reports, and the option of each.
var lockedFlags = []struct {
	flag   int64
	option string
}{
	{unix.ST_RDONLY, "ro"}, {unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"},
}

// accessTimes are those of access times. The kernel leaves them as they are unless an option names one.
var accessTimes = []struct {
	flag   int64
	option string
}{
	{unix.ST_NOATIME, "noatime"}, {unix.ST_NODIRATIME, "nodiratime"}, {unix.ST_RELATIME, "relatime"},
}

// KeepLockedFlags repeats in the options of each bind mount what its source is mounted with, if the container has a user namespace. The
// kernel refuses to take such a flag away there, and setting others without naming it would be to take it away. Newer runtimes see to
// that themselves, runc 1.1 does not.
func KeepLockedFlags(spec *specs.Spec) {
	if spec.Linux == nil || !slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.UserNamespace
	}) {
		return
	}
	for i, mount := range spec.Mounts {
		var system unix.Statfs_t
		if !IsBind(mount) || unix.Statfs(mount.Source, &system) != nil {
			continue
		}
		flags := lockedFlags
		if slices.ContainsFunc(mount.Options, isAccessTime) {
			flags = slices.Concat(lockedFlags, accessTimes)
		}
		for _, locked := range flags {
			if system.Flags&locked.flag != 0 && !slices.Contains(mount.Options, locked.option) {
				mount.Options = append(slices.Clone(mount.Options), locked.option) // the last of "rw" and "ro" counts
			}
		}
		spec.Mounts[i].Options = mount.Options
	}
}

func isAccessTime(option string) bool {
	return slices.Contains([]string{"atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime"}, option)
}
