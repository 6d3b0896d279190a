package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// scratch is where the sandbox keeps what it needs for itself.
const scratch = "/run/sandbox"

func lockThread() { runtime.LockOSThread() }

// runInit is process 1 of the sandbox: it arranges the mounts and the loopback interface, starts the command and
// reaps whatever is handed to it, until the command ends.
func runInit(args []string) (int, error) {
	if err := arrangeMounts(os.Getenv(keepDirEnv)); err != nil {
		return 0, err
	}
	if err := remountCgroups(); err != nil {
		return 0, err
	}
	if err := loopbackUp(); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGCHLD)
	path, err := exec.LookPath(args[0])
	if err != nil {
		return 127, fmt.Errorf("%s: %w", args[0], err)
	}
	child, err := os.StartProcess(path, args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Env: os.Environ()})
	if err != nil {
		return 126, fmt.Errorf("start %s: %w", path, err)
	}
	for s := range signals {
		if s != unix.SIGCHLD {
			_ = child.Signal(s)
			continue
		}
		if status, ended := reap(child.Pid); ended {
			if status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return status.ExitStatus(), nil
		}
	}
	return 0, nil
}

// reap collects every child that has ended and says whether the one that the sandbox was made for is among them.
func reap(mainPID int) (status unix.WaitStatus, ended bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return status, ended
		}
		if pid == mainPID && (ws.Exited() || ws.Signaled()) {
			status, ended = ws, true
		}
	}
}

// arrangeMounts cuts the mount namespace off from the host's and gives it the file systems that a node writes to
// outside its own state: what lands there is gone with the namespace.
func arrangeMounts(keepDir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount namespace private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc of the new PID namespace: %w", err)
	}
	keep, err := openKept(keepDir)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount an empty /run: %w", err)
	}
	if err := os.Mkdir(tempDir, 0o755); err != nil {
		return err
	}
	// Tests make device nodes there, so it is not nodev like /run.
	if err := unix.Mount("tmpfs", tempDir, "tmpfs", unix.MS_NOSUID, "mode=1777"); err != nil {
		return fmt.Errorf("mount %s: %w", tempDir, err)
	}
	if err := ownNullDevice(); err != nil {
		return err
	}
	if err := scratchOver("/var/lib"); err != nil {
		return err
	}
	return keep.restore()
}

// ownNullDevice lays a node of the sandbox's own over /dev/null, which is the machine's: there are runtimes that give
// their stdin to the user of a container, and tests that see whether they do.
func ownNullDevice() error {
	const dir = scratch + "/dev"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// Not nodev like /run, and only for this.
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=4k"); err != nil {
		return fmt.Errorf("mount a place for the sandbox's own /dev/null: %w", err)
	}
	node := filepath.Join(dir, "null")
	if err := unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(1, 3))); err != nil {
		return fmt.Errorf("make the sandbox's own /dev/null: %w", err)
	}
	// The umask takes from what mknod is asked for.
	if err := os.Chmod(node, 0o666); err != nil {
		return err
	}
	if err := unix.Mount(node, os.DevNull, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the sandbox's own /dev/null: %w", err)
	}
	return nil
}

// kept is a directory that must stay what it was although a file system is mounted over one of its parents.
type kept struct {
	path string
	fd   int
}

func openKept(dir string) (kept, error) {
	if !strings.HasPrefix(dir, "/run/") && !strings.HasPrefix(dir, "/var/lib/") {
		return kept{fd: -1}, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return kept{}, fmt.Errorf("open the working directory %s: %w", dir, err)
	}
	return kept{path: dir, fd: fd}, nil
}

// restore mounts the directory where it was.
func (k kept) restore() error {
	if k.fd < 0 {
		return nil
	}
	defer unix.Close(k.fd)
	if err := os.MkdirAll(k.path, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", k.fd), k.path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep the working directory %s: %w", k.path, err)
	}
	return nil
}

// scratchOver lays a writable layer in memory over dir.
func scratchOver(dir string) error {
	upper, work := scratch+"/upper", scratch+"/work"
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	options := "lowerdir=" + dir + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount a scratch layer over %s: %w", dir, err)
	}
	return nil
}

// loopbackUp brings up lo, which a new network namespace has but leaves down (netdevice(7)).
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket to bring up lo: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("read the flags of lo: %w", err)
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}
