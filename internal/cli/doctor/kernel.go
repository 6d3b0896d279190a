package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

var kernelChecks = []check{
	{"kernel", "version", kernelVersion},
	{"kernel", "openat2", kernelOpenat2},
	{"kernel", "user namespaces", kernelUserNamespaces},
	{"kernel", "overlay", kernelOverlay},
}

func kernelVersion(_ context.Context, n *Node) finding {
	file := n.path("/proc/sys/kernel/osrelease")
	text, err := os.ReadFile(file)
	release := strings.TrimSpace(string(text))
	var major, minor int
	_, scanErr := fmt.Sscanf(release, "%d.%d", &major, &minor)
	if err == nil && scanErr == nil && (major > 5 || major == 5 && minor >= 6) {
		return ok(file, "%s", release)
	}
	return fault(file, orNone(release), "run Linux 5.6 or newer, which has openat2")
}

// kernelOpenat2 tries it: a seccomp filter or an old kernel may not have it, and without it nothing in a container's
// file system can be touched safely.
func kernelOpenat2(context.Context, *Node) finding {
	const looked = "openat2(2)"
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return fault(looked, err.Error(), "run Linux 5.6 or newer, outside filters that forbid openat2")
	}
	_ = unix.Close(fd)
	return ok(looked, "works")
}

func kernelUserNamespaces(_ context.Context, n *Node) finding {
	file := n.path("/proc/sys/user/max_user_namespaces")
	text, err := os.ReadFile(file)
	count := strings.TrimSpace(string(text))
	if err != nil || count == "0" {
		return warning(file, orNone(count), "containers with userns_mode cannot start: sysctl user.max_user_namespaces=15000")
	}
	return ok(file, "%s may be made", count)
}

func kernelOverlay(_ context.Context, n *Node) finding {
	file := n.path("/proc/filesystems")
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "\toverlay\n") {
		return warning(file, "no overlay", "container engines store images in overlay: modprobe overlay")
	}
	return ok(file, "overlay is there")
}

func orNone(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}
