// Package ownnull runs an OCI runtime with a null device of its own in place of the host's /dev/null.
//
// crun before 1.24 makes the user of a container the owner of its own stdin, stdout and stderr (containers/crun#1847), and
// containerd's shim opens the host's /dev/null for those that a process does not have. Whoever owns that file may take it
// away from everybody else on the machine: a container with a user namespace even sees the very file, by a mount, and
// could do so with one chmod. What to open is not for a client of containerd's to say, but which program to run is. So the
// shim runs a link of ours that leads to a small program, which opens another null device and becomes the runtime.
package ownnull

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// linkDir is in the path of every link. What comes after it is the path of the runtime.
const linkDir = "/own-null/"

// Link makes a link below dir to helper, a program that calls Runtime and Become, and returns its path. To run that is to
// run the runtime, which has to be an absolute path. Only root may write to dir.
func Link(dir, helper, runtime string) (string, error) {
	link := filepath.Join(dir, linkDir, runtime)
	if to, err := os.Readlink(link); err == nil && to == helper {
		return link, nil
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return "", err
	}
	// Starts run side by side: whoever looks sees the old link or the new one.
	draft, err := os.MkdirTemp(filepath.Dir(link), ".new-")
	if err != nil {
		return "", err
	}
	made := filepath.Join(draft, "link")
	err = os.Symlink(helper, made)
	if err == nil {
		err = os.Rename(made, link)
	}
	return link, errors.Join(err, os.RemoveAll(draft))
}

// Runtime returns the runtime that a program is to become that was started under a name; false if it was started under a
// name of its own.
func Runtime(name string) (path string, ok bool) {
	_, path, ok = strings.Cut(name, linkDir)
	return "/" + path, ok && path != ""
}

// Become turns this process into the runtime, whose arguments after its name are args. It returns only if that fails.
func Become(runtime string, args []string) error {
	// Until then a container that sees the host's processes could reach this program's file through /proc/PID/exe and write
	// to it afterwards (CVE-2019-5736). The runtime begins with a state of its own.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close /proc of the process to others: %w", err)
	}
	if err := replaceStreams(); err != nil {
		return fmt.Errorf("keep the host's /dev/null from %s: %w", runtime, err)
	}
	err := unix.Exec(runtime, append([]string{runtime}, args...), os.Environ())
	return fmt.Errorf("run the OCI runtime %s: %w", runtime, err)
}

// replaceStreams gives this process another null device for each of its standard streams that is one.
func replaceStreams() error {
	var own *os.File
	for fd := range 3 {
		is, err := isNull(fd)
		if err == nil && is && own == nil {
			own, err = open()
		}
		if err == nil && is {
			err = unix.Dup3(int(own.Fd()), fd, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isNull says whether a descriptor is of a null device. One that is closed is none.
func isNull(fd int) (bool, error) {
	var stat unix.Stat_t
	err := unix.Fstat(fd, &stat)
	if errors.Is(err, unix.EBADF) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: fmt.Sprintf("descriptor %d", fd), Err: err}
	}
	return stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == nullDevice, nil
}

// nullDevice is the number of null devices: runtimes know them by it, and open the container's own in their place.
var nullDevice = unix.Mkdev(1, 3)

// open makes a null device that nothing leads to but the descriptor: in a file system that is mounted nowhere, and goes
// with it. Directories of the host's could not hold one, where an administrator has mounted them nodev.
func open() (*os.File, error) {
	context, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open a tmpfs for a null device (Linux 5.2 or newer has to): %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("make a tmpfs for a null device: %w", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mount a tmpfs for a null device: %w", err)
	}
	defer unix.Close(mount)
	// It has the name of the host's. A program that a runtime leaves it to, for a command in a container, sees no other.
	const dir, name = "dev", "dev/null"
	if err := unix.Mkdirat(mount, dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of a null device: %w", err)
	}
	if err := unix.Mknodat(mount, name, unix.S_IFCHR|0o600, int(nullDevice)); err != nil {
		return nil, fmt.Errorf("make a null device: %w", err)
	}
	// With the permissions of the host's: a program may open its stdin anew.
	if err := unix.Fchmodat(mount, name, 0o666, 0); err != nil {
		return nil, fmt.Errorf("give a null device its permissions: %w", err)
	}
	fd, err := unix.Openat(mount, name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a null device: %w", err)
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}
