package rootfs

import (
	"errors"
	"os"
	"time"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// patience bounds how long a path is looked up anew: the kernel gives up on one with ".." in it whenever anything on the
// machine is renamed or mounted meanwhile. Anybody may do that in a loop, so a number of tries would not do: they would be
// spent in a millisecond. Nothing tells of a better moment, hence the pauses.
const (
	patience     = 5 * time.Second
	triesAtATime = 64
	pause        = 100 * time.Microsecond
)

// lookUp resolves a path inside a root in one step of the kernel's (openat2, since 5.6): links in it, swapped in or not,
// lead nowhere outside, nor do those that are no paths, as in /proc. Older kernels have the path walked step by step,
// which a library does well, but at a cost for each path that a container's start would feel.
func lookUp(root *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	begun := time.Now()
	for tries := 1; ; tries++ {
		fd, err := unix.Openat2(int(root.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // an old kernel, or a filter of system calls
			return pathrs.OpenatInRoot(root, name)
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINTR):
			return nil, err
		case tries%triesAtATime == 0 && time.Since(begun) > patience:
			return nil, err
		case tries%triesAtATime == 0:
			time.Sleep(pause)
		}
	}
}
