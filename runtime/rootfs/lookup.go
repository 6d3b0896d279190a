package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is more links than the kernel follows in one path (40), and in one from a working directory that has as many
// in its own.
const maxLinks = 100

// maxSteps bounds the elements of paths that are looked up in one root, those of links included.
const maxSteps = 1_000_000

// maxPathBytes is the kernel's limit for what a link may hold.
const maxPathBytes = 4096

// ErrUndecided says that each process that follows a path is led elsewhere by it, as by most links in /proc.
var ErrUndecided = errors.New("only the process that follows the path knows where that is; name a path that does not lead " +
	"through /proc")

// walk resolves one path, element by element.
//
// The kernel could do it in one step (openat2), but as the process that asks: as ours, not as one in the container. It
// refuses links in /proc that are no paths, or follows them to our own files; it finds no process that is still to come;
// and it does not follow a link in a directory like /tmp that another user made, which that user's processes do follow
// (fs.protected_symlinks). Step by step, no name leads outside: links are read, never followed, and ".." goes back to
// where the walk came from.
type walk struct {
	root  *Root
	dirs  []place // from the root to where the walk is
	rest  []string
	links int
	// inCwd says that the walk has gone by the working directory. What a working directory is that leads through itself
	// depends on the one before it.
	inCwd bool
}

// place is a file that a walk has come to, open for nothing but to be named (O_PATH).
type place struct {
	name   string
	fd     int
	device uint64
	inode  uint64
	// inProc says that it is a directory of a proc file system.
	inProc bool
}

// ErrRefused says that a path leads to a directory that Refuse has named.
var ErrRefused = errors.New("it leads to a directory that is Tranche's own")

// procRootInode is that of the root of each proc file system.
const procRootInode = 1

func (r *Root) lookUp(name string) (*os.File, error) {
	w := &walk{root: r, rest: elements(name)}
	defer func() { w.backTo(0) }()
	if err := w.toRoot(); err != nil {
		return nil, err
	}
	for len(w.rest) > 0 {
		if r.steps++; r.steps > maxSteps {
			return nil, ErrTooMuch
		}
		element := w.rest[0]
		w.rest = w.rest[1:]
		if err := w.step(element); err != nil {
			return nil, err
		}
	}
	fd := w.at().fd
	w.dirs = w.dirs[:len(w.dirs)-1]
	return os.NewFile(uintptr(fd), name), nil
}

func (w *walk) at() place { return w.dirs[len(w.dirs)-1] }

// backTo closes all but the first places.
func (w *walk) backTo(places int) {
	for _, p := range w.dirs[places:] {
		_ = unix.Close(p.fd)
	}
	w.dirs = w.dirs[:places]
}

func (w *walk) toRoot() error {
	if len(w.dirs) > 0 {
		w.backTo(1)
		return nil
	}
	fd, err := unix.FcntlInt(w.root.dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return w.enter("", fd)
}

// step goes on by one element.
func (w *walk) step(element string) error {
	switch {
	case element == ".":
		return nil
	case element == "..":
		w.backTo(max(1, len(w.dirs)-1))
		return nil
	case w.at().inProc && w.at().inode == procRootInode:
		if to, ok, err := w.ofProcess(element); err != nil || ok {
			return w.follow(to, err)
		}
	}
	if len(w.dirs) == strings.Count(w.root.refused, "/") && w.pathOf(element) == w.root.refused {
		return fmt.Errorf("%w, %s; have the image or the environment name another", ErrRefused, w.root.refused)
	}
	fd, err := w.open(element)
	if err != nil {
		return err
	}
	return w.enter(element, fd)
}

// pathOf is the path of an element in the directory where the walk is.
func (w *walk) pathOf(element string) string {
	path := ""
	for _, p := range w.dirs[1:] {
		path += "/" + p.name
	}
	return path + "/" + element
}

// open opens an element in the directory where the walk is. What comes before other elements is opened as a directory, if
// it is one, which has an automounter mount it.
func (w *walk) open(element string) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if len(w.rest) > 0 {
		fd, err := unix.Openat(w.at().fd, element, flags|unix.O_DIRECTORY, 0)
		if !errors.Is(err, unix.ENOTDIR) {
			return fd, w.root.denied(w.at().fd, err)
		}
	}
	fd, err := unix.Openat(w.at().fd, element, flags, 0)
	return fd, w.root.denied(w.at().fd, err)
}

// enter takes over a descriptor, and has the walk be there; or where it leads, if it is a link.
func (w *walk) enter(name string, fd int) error {
	p := place{name: name, fd: fd}
	var stat unix.Stat_t
	err := unix.Fstat(fd, &stat)
	if err == nil && stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		to, err := w.target(fd)
		_ = unix.Close(fd)
		return w.follow(to, err)
	}
	p.device, p.inode = stat.Dev, stat.Ino
	if err == nil && stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		p.inProc, err = w.isProc(p)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	w.dirs = append(w.dirs, p)
	return nil
}

// isProc reports whether a directory is one of a proc file system, which it is if the one above it on the same device is.
func (w *walk) isProc(p place) (bool, error) {
	if len(w.dirs) > 0 && w.at().device == p.device {
		return w.at().inProc, nil
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(p.fd, &system); err != nil {
		return false, err
	}
	return system.Type == unix.PROC_SUPER_MAGIC, nil
}

// target reads an open link.
func (w *walk) target(link int) (string, error) {
	if w.at().inProc {
		return "", fmt.Errorf("it leads through a link in /proc: %w", ErrUndecided)
	}
	text := make([]byte, maxPathBytes)
	size, err := unix.Readlinkat(link, "", text)
	return string(text[:size]), err
}

// follow has the walk go on by the path of a link, unless reading that has failed.
func (w *walk) follow(to string, err error) error {
	if err != nil {
		return err
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	if to == "" {
		return fs.ErrNotExist
	}
	if strings.HasPrefix(to, "/") {
		if err := w.toRoot(); err != nil {
			return err
		}
	}
	w.rest = slices.Concat(elements(to), w.rest)
	return nil
}

// ofProcess understands the two links that lead each process of the container to the same place, "self/root" and
// "self/cwd", as paths. All else that belongs to one process is undecided, be that process there by now or not.
func (w *walk) ofProcess(element string) (to string, ok bool, err error) {
	if element[0] >= '0' && element[0] <= '9' {
		return "", true, fmt.Errorf("it leads through process %s in /proc: %w", element, ErrUndecided)
	}
	if element != "self" && element != "thread-self" {
		return "", false, nil
	}
	for len(w.rest) > 0 && w.rest[0] == "." {
		w.rest = w.rest[1:]
	}
	switch {
	case len(w.rest) > 0 && w.rest[0] == "root":
		w.rest = w.rest[1:]
		return "/", true, nil
	case len(w.rest) > 0 && w.rest[0] == "cwd" && !w.inCwd:
		w.rest, w.inCwd = w.rest[1:], true
		return "/" + w.root.cwd, true, nil
	}
	return "", true, fmt.Errorf("it leads through %s in /proc, of which only %[1]s/root and, once, %[1]s/cwd are followed: %w",
		element, ErrUndecided)
}
