package region

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// boundedInodes are those of a bounded region: its directory, its two files, the governor's socket, one that is to replace
// it, and one that the kernel keeps for itself.
const boundedInodes = 6

// CreateBounded makes the region in dir, which must not exist, on a small file system of its own, mounted there.
//
// A container's root owns what is in the usage file, so he may make it as long as he likes. On the file system that all
// regions and much else on the host have in common he would fill that; on one of its own he harms himself alone.
//
// It takes root and Linux 5.2. Where the kernel does not have the calls, the error is errors.ErrUnsupported.
func CreateBounded(dir string, h Header) error {
	if err := h.check(); err != nil {
		return fmt.Errorf("making the region %s: %w", dir, err)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(dir)), 0o700); err != nil {
		return fmt.Errorf("making the directory of regions: %w", err)
	}
	// Filled before anybody can see it, and gone with the descriptor if we end here.
	mount, err := detachedTmpfs(boundedSize())
	if err != nil {
		return fmt.Errorf("making a file system for the region %s: %w", dir, err)
	}
	defer mount.Close()
	if err := fill(fmt.Sprintf("/proc/self/fd/%d", mount.Fd()), h); err != nil {
		return fmt.Errorf("making the region %s: %w", dir, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("making the region: %w", err)
	}
	err = unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return errors.Join(fmt.Errorf("mounting the region %s: %w", dir, err), os.Remove(dir))
	}
	return nil
}

// boundedSize has room for both files when every page of them is written, and for nothing else.
func boundedSize() int64 {
	page := int64(os.Getpagesize())
	inPages := func(size int64) int64 { return (size + page - 1) / page * page }
	return inPages(LimitSize) + inPages(UsageSize)
}

// detachedTmpfs makes a file system that is mounted nowhere yet. Nothing on it is a program, a device or set-user-ID,
// whatever the container makes of the modes of its files.
func detachedTmpfs(size int64) (*os.File, error) {
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(context)
	for _, option := range [][2]string{
		{"size", strconv.FormatInt(size, 10)}, {"nr_inodes", strconv.Itoa(boundedInodes)}, {"mode", "0755"},
	} {
		if err := unix.FsconfigSetString(context, option[0], option[1]); err != nil {
			return nil, os.NewSyscallError("fsconfig "+option[0], err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, os.NewSyscallError("fsconfig create", err)
	}
	attributes := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(mount), "region"), nil
}

// Bounded reports whether the region in dir lies on a file system of its own.
func Bounded(dir string) bool {
	var own, parent unix.Stat_t
	return unix.Lstat(dir, &own) == nil && unix.Lstat(filepath.Dir(dir), &parent) == nil && own.Dev != parent.Dev
}

// Remove removes the region in dir. Whoever has it mounted or open keeps what he has.
func Remove(dir string) error {
	if Bounded(dir) {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("removing the region: %w", &os.PathError{Op: "unmount", Path: dir, Err: err})
		}
	}
	return removeAll(dir)
}

// removeAll removes a directory in which the governor may be making its socket at the same time.
func removeAll(dir string) (err error) {
	for _, name := range []string{UsageFile, LimitFile} {
		_ = unix.Unlink(filepath.Join(dir, name))
	}
	if unix.Rmdir(dir) == nil { // there was nothing else in it, as usual
		return nil
	}
	for range 100 {
		if err = os.RemoveAll(dir); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}
