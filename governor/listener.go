package governor

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/governor/protocol"
)

// listener is a claim's socket.
type listener struct {
	fd int // 0 if there is none
	// device and inode are the socket's. The directory may be made again, so that the processes do not see it any more.
	device, inode uint64
	// failed is the last error, which is logged once.
	failed string
}

// checkListeners makes the sockets that are missing.
func (n *node) checkListeners() {
	for _, m := range n.claims {
		if m.listener.fd != 0 && m.listener.isAt(m.path()) {
			continue
		}
		if m.listener.fd != 0 {
			n.loop.remove(m.listener.fd)
			m.listener = listener{}
		}
		err := n.listen(m)
		if os.IsNotExist(err) {
			continue // its directory is made when its container starts
		}
		if err != nil && err.Error() != m.listener.failed {
			m.listener.failed = err.Error()
			n.logger.Error("the processes of a claim cannot join, so they compute as they like", "claim", m.ID, "error", err)
		}
	}
}

func (m *member) path() string { return filepath.Join(m.dir, protocol.Socket) }

// isAt reports whether the socket is the one at a path.
func (l *listener) isAt(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil && st.Dev == l.device && st.Ino == l.inode
}

// listen makes a claim's socket, in place of one that an earlier governor has left.
func (n *node) listen(m *member) error {
	dir, err := unix.Open(m.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: m.dir, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if m.listener, err = bind(fd, dir); err == nil {
		err = n.loop.add(fd, func() { n.accept(m, fd) })
	}
	if err != nil {
		_ = unix.Close(fd)
		m.listener = listener{failed: m.listener.failed}
	}
	return err
}

// bind gives a socket its name in a directory, once connections to it are accepted.
func bind(fd, dir int) (listener, error) {
	const unfinished = "." + protocol.Socket
	_ = unix.Unlinkat(dir, unfinished, 0)
	// An address has no room for long paths.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir, unfinished)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return listener{}, os.NewSyscallError("bind", err)
	}
	// A container's processes may be any user's.
	if err := unix.Fchmodat(dir, unfinished, 0o666, 0); err != nil {
		return listener{}, os.NewSyscallError("chmod", err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		return listener{}, os.NewSyscallError("listen", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, unfinished, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return listener{}, os.NewSyscallError("stat", err)
	}
	if err := unix.Renameat(dir, unfinished, dir, protocol.Socket); err != nil {
		return listener{}, os.NewSyscallError("rename", err)
	}
	return listener{fd: fd, device: st.Dev, inode: st.Ino}, nil
}

// closeListener removes a claim's socket.
func (n *node) closeListener(m *member) {
	if m.listener.fd == 0 {
		return
	}
	if m.listener.isAt(m.path()) {
		_ = os.Remove(m.path())
	}
	n.loop.remove(m.listener.fd)
	m.listener = listener{}
}
