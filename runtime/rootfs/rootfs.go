// Package rootfs looks into a container's root file system from outside, as root, while others may change it.
//
// Every path is resolved inside the root by descriptor: a link in the image, or one that somebody swaps in while we
// look, leads to where it would lead in the container, and never out of it. A path that leads each process elsewhere is
// an error (ErrUndecided). No device and no FIFO is ever opened, since
// opening one can do things, or wait for ever.
package rootfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of what is looked at in one root. An image chooses how many directories there are, how large they are, and how
// often its configuration leads to each.
const (
	maxLookups = 20_000
	maxEntries = 1_000_000
)

// ErrTooMuch says that a root has more in it than anybody needs for a program's libraries.
var ErrTooMuch = errors.New("the image has too many files and directories where libraries are looked for; remove some of them")

// Root is a container's root file system. It is for one goroutine.
type Root struct {
	dir     *os.File
	path    string
	cwd     string
	refused string // see Refuse
	lookups int
	steps   int
	entries int
}

// Open opens the root file system at a path of the host's, which its container manager chose. The working directory of the
// container's process is cwd, a path in the container.
func Open(dir, cwd string) (*Root, error) {
	if err := checkProc(); err != nil {
		return nil, fmt.Errorf("open the container's root file system: %w", err)
	}
	file, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the container's root file system: %w", err)
	}
	at, err := PathOf(file)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open the container's root file system: %w", err)
	}
	return &Root{dir: file, path: at, cwd: cwd}, nil
}

// Refuse makes it an error to look up a directory of the container's, by whatever path, or anything in it that is there or
// will be. It is a path without links.
func (r *Root) Refuse(dir string) { r.refused = dir }

// Close closes the root.
func (r *Root) Close() error { return r.dir.Close() }

// Path is where the root is, as the kernel sees it.
func (r *Root) Path() string { return r.path }

// PathOf is where the kernel says that an open file is.
func PathOf(file *os.File) (string, error) {
	at, err := os.Readlink(FDPath(file))
	if errors.Is(err, unix.ENAMETOOLONG) { // by links one gets there all the same
		return "", fmt.Errorf("find a directory whose path is longer than the kernel allows: %w", ErrTooMuch)
	}
	return at, err
}

// FDPath names an open file itself, whatever its own path leads to by now.
func FDPath(file *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(file.Fd())) }

// checkProc makes sure that /proc is the kernel's: open files are named through it. It is the host's, not the container's.
func checkProc() error {
	var system unix.Statfs_t
	if err := unix.Statfs("/proc/self", &system); err != nil {
		return fmt.Errorf("look for /proc: %w", err)
	}
	if system.Type != unix.PROC_SUPER_MAGIC {
		return errors.New("what is mounted on the host's /proc is no proc file system")
	}
	return nil
}

// Where is the path in the container, without links, of what a path leads to.
func (r *Root) Where(name string) (string, error) {
	file, err := r.Handle(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return r.WhereIs(file)
}

// WhereIs is the path in the container of a file that was looked up in it.
func (r *Root) WhereIs(file *os.File) (string, error) {
	at, err := PathOf(file)
	if err != nil {
		return "", err
	}
	if at == r.path || r.path == "/" {
		return path.Clean("/" + strings.TrimPrefix(at, r.path)), nil
	}
	inside, ok := strings.CutPrefix(at, r.path+"/")
	if !ok { // somebody has moved it out of the root since
		return "", &fs.PathError{Op: "find in the container", Path: at, Err: fs.ErrNotExist}
	}
	return "/" + inside, nil
}

// Handle is the file that a path leads to in the container, through links too, open for nothing but to be named
// (O_PATH).
func (r *Root) Handle(name string) (*os.File, error) {
	if r.lookups++; r.lookups > maxLookups {
		return nil, ErrTooMuch
	}
	file, err := r.lookUp(name)
	if err != nil {
		return nil, &fs.PathError{Op: "look up in the container", Path: name, Err: err}
	}
	return file, nil
}

// Open opens a regular file or a directory for reading. It makes a Root an fs.FS, but one that links don't leave.
func (r *Root) Open(name string) (fs.File, error) { return r.open(name) }

func (r *Root) open(name string) (*os.File, error) {
	handle, err := r.Handle(name)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil, &fs.PathError{
			Op: "open in the container", Path: name, Err: fmt.Errorf("it is no file (%s): %w", info.Mode(), fs.ErrInvalid),
		}
	}
	file, err := r.Reopen(handle)
	if errors.Is(err, ErrUnreadable) {
		return nil, &fs.PathError{Op: "open in the container", Path: name, Err: err}
	}
	return file, err
}

// Reopen opens for reading what a handle names: the file itself, not what its path leads to by now.
//
// Open has made sure of /proc; a library that looks at it anew for each file mounts one of its own each time, which took a
// container's start twenty milliseconds.
func (r *Root) Reopen(handle *os.File) (*os.File, error) {
	file, err := os.OpenFile(FDPath(handle), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, r.denied(int(handle.Fd()), err)
	}
	return file, nil
}

// ErrUnreadable says that the root file system holds something that we may not read.
var ErrUnreadable = errors.New("the container's root may not look into it, though other users in the container might; " +
	"change its owner in the image (chown) to a user that the container's user namespace has")

// denied makes an error of what was not allowed with an open file or in an open directory. Root is kept out of volumes on
// network file systems, and the container with it; but out of the root file system only where it belongs to nobody in the
// container's user namespace, which an image can bring about by itself.
func (r *Root) denied(fd int, err error) error {
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	at, err1 := mountID(fd)
	own, err2 := mountID(int(r.dir.Fd()))
	if err1 == nil && err2 == nil && at != own {
		return err
	}
	return ErrUnreadable
}

// MountID is the kernel's number for the mount that a file was opened through.
func MountID(file *os.File) (string, error) { return mountID(int(file.Fd())) }

func mountID(fd int) (string, error) {
	content, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(content)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", errors.New("the kernel does not say on which mount a file is")
}

// ReadFile reads a regular file of at most maxBytes.
func (r *Root) ReadFile(name string, maxBytes int64) ([]byte, error) {
	file, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && int64(len(content)) > maxBytes {
		return nil, &fs.PathError{
			Op: "read in the container", Path: name, Err: fmt.Errorf("it is larger than %d KiB: %w", maxBytes>>10, ErrTooMuch),
		}
	}
	return content, err
}

// Names are the names in a directory, in order.
func (r *Root) Names(name string) ([]string, error) {
	dir, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return r.namesIn(dir)
}

func (r *Root) namesIn(dir *os.File) ([]string, error) {
	var names []string
	for {
		some, err := dir.Readdirnames(1024)
		names = append(names, some...)
		if r.entries += len(some); r.entries > maxEntries {
			return nil, ErrTooMuch
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// Unreachable tells whether an error means that a path leads nowhere that a program in the container could read either,
// rather than that we failed.
func Unreachable(err error) bool {
	for _, one := range []error{
		fs.ErrNotExist, fs.ErrPermission, fs.ErrInvalid,
		unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}
