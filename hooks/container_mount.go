package hooks

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

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

// keptFlags are what a mount in a user namespace may not lose: statfs says which it has, and mount takes them under
// these names.
var keptFlags = map[int64]uintptr{
	unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV, unix.ST_NOEXEC: unix.MS_NOEXEC,
	unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
}

// readOnly makes a bind mount read-only: nobody in the container is to write a file by this name that it may not write
// by another.
func readOnly(mounted *os.File) error {
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

// refuseShared refuses to mount over a file on a mount that passes its mounts on, as a volume with the propagation
// "rshared" does: the host, or another container, would find the shadow in the place of its own file.
func refuseShared(file *os.File) error {
	id, err := rootfs.MountID(file)
	if err != nil {
		return err
	}
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if mount.id == id && mount.shared {
			return fmt.Errorf("it lies in a volume (%s) whose mounts are shared with the host, so a shadow over it would "+
				"be one on the host; mount the volume without the propagation \"shared\"", mount.at)
		}
	}
	return nil
}

// mountPoint is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mountPoint struct {
	id     string
	at     string
	shared bool
}

func readMounts() ([]mountPoint, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parseMounts(file)
}

func parseMounts(text io.Reader) ([]mountPoint, error) {
	var mounts []mountPoint
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, _, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if len(fields) < 6 {
			continue
		}
		mount := mountPoint{id: fields[0], at: unescape.Replace(fields[4])}
		for _, option := range fields[6:] {
			mount.shared = mount.shared || strings.HasPrefix(option, "shared:")
		}
		mounts = append(mounts, mount)
	}
	return mounts, lines.Err()
}

// unescape undoes what the kernel writes for characters that would break a line into other fields.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
