package drivercopies

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// Files are mounted by descriptor, through /proc/self/fd, on every kernel. That names the very file which was opened,
// as open_tree and move_mount of kernels since 5.2 do, and spares us a second way for the older ones.

// bindMount mounts one open file over another.
func bindMount(file, over *os.File) error {
	if err := unix.Mount(rootfs.FDPath(file), rootfs.FDPath(over), "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind mount", Path: file.Name(), Err: err}
	}
	return nil
}

// keptFlags are the mount flags that a mount in a user namespace may not lose: statfs returns the keys, mount takes the
// values.
var keptFlags = map[int64]uintptr{
	unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV, unix.ST_NOEXEC: unix.MS_NOEXEC,
	unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
}

// remountReadOnly makes a bind mount read-only, so that processes in the container cannot write a file by this name that
// they may not write by another.
func remountReadOnly(mounted *os.File) error {
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(mounted.Fd()), &system); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
	for has, keep := range keptFlags {
		if system.Flags&has != 0 {
			flags |= keep
		}
	}
	if err := unix.Mount("", rootfs.FDPath(mounted), "", flags, ""); err != nil {
		return &os.PathError{Op: "make read-only", Path: mounted.Name(), Err: err}
	}
	return nil
}

// refuseShared returns an error if the file is on a mount that propagates its mounts, as a volume with the propagation
// "rshared" does: the host, or another container, would see the shadow in place of its own file.
func refuseShared(file *os.File) error {
	id, err := rootfs.MountID(file)
	if err != nil {
		return err
	}
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		if !strings.HasPrefix(line, id+" ") {
			continue // there may be thousands, and the container waits
		}
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(line), nil)
		if err != nil {
			return err
		}
		if mount := mounts[0]; isShared(mount) {
			return fmt.Errorf("it is in a volume (%s) whose mounts are shared with the host, so a shadow mounted over it "+
				"would appear on the host; mount the volume without the propagation \"shared\"", mount.Mountpoint)
		}
	}
	return nil
}

func isShared(mount *mountinfo.Info) bool {
	return slices.ContainsFunc(strings.Fields(mount.Optional), func(field string) bool {
		return strings.HasPrefix(field, "shared:")
	})
}
