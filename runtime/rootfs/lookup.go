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

// maxLinks is more links than the kernel follows in one path (40) and in that of its working directory (40).
const maxLinks = 100

// maxSteps bounds the path elements that are looked up in one root, those of links included.
const maxSteps = 1_000_000

// maxPathBytes is the kernel's limit for the target of a link.
const maxPathBytes = 4096

// ErrUndecided is returned for a path that leads to another file for each process, as by most links in /proc.
var ErrUndecided = errors.New("only the process that follows the path knows where that is; name a path that does not lead " +
	"through /proc")

// walk resolves one path, element by element.
//
// The kernel could do it in one step (openat2), but for the calling process instead of one in the container. It refuses links
// in /proc that are not paths, or follows them to files of the caller; it finds no process that starts later; and it does not
// follow a link of another user in a directory like /tmp, which that user's processes do follow (fs.protected_symlinks). Step
// by step, no name leads outside: links are read, never followed, and ".." goes back to where the walk came from.
type walk struct {
	root  *Root
	dirs  []place // from the root to the current directory
	rest  []string
	links int
	// inCwd reports that the walk has gone through the working directory. A working directory whose path leads through itself
	// depends on the previous one.
	inCwd bool
}

// place is a directory or file of the walk, open as a reference (O_PATH).
type place struct {
	name   string
	fd     int
	device uint64
	inode  uint64
	// inProc reports that it is a directory of a proc file system.
	inProc bool
}

// ErrRefused is returned for a path that leads to the directory of Refuse.
var ErrRefused = errors.New("it leads to a directory that is Tranche's own")

// procRootInode is the inode number of the root of every proc file system.
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

// backTo closes all but the first so many places.
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

// step resolves one element.
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

// pathOf returns the path of an element in the current directory.
func (w *walk) pathOf(element string) string {
	path := ""
	for _, p := range w.dirs[1:] {
		path += "/" + p.name
	}
	return path + "/" + element
}

// open opens an element in the current directory. If other elements follow, it tries to open a directory first, which
// triggers automounts.
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

// enter continues the walk at a descriptor, which it takes over, or follows it if it is a link.
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

// isProc reports whether a directory is on a proc file system. On the same device it is if its parent is.
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

// target returns the target of an open link.
func (w *walk) target(link int) (string, error) {
	if w.at().inProc {
		return "", fmt.Errorf("it leads through a link in /proc: %w", ErrUndecided)
	}
	text := make([]byte, maxPathBytes)
	size, err := unix.Readlinkat(link, "", text)
	return string(text[:size]), err
}

// follow continues the walk at the target of a link, unless reading it has failed.
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

// ofProcess resolves the two links that lead to the same directory for each process of the container, "self/root" and
// "self/cwd", to their paths. All other files of a process are undecided, whether that process exists or not.
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
