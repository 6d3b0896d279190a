// Package rootfs reads a container's root file system from outside, as root, while others may change it.
//
// Every path is resolved inside the root by descriptor: a link in the image, or one that is swapped in meanwhile, is followed
// as in the container, and never out of it. A path that leads to another file for each process is an error (ErrUndecided). No
// device and no FIFO is ever opened, since opening one can have effects or block forever.
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

// Bounds of lookups in one root. The image's author chooses the number and the size of its directories, and how often its
// configuration names each.
const (
	maxLookups = 20_000
	maxEntries = 1_000_000
)

// ErrTooMuch is returned if a root has more files than any program's libraries need.
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

// Open opens the root file system at a path on the host. The working directory of the container's process is cwd, a path in the
// container.
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

// Refuse makes it an error to look up a directory of the container, or a file in it, by any path. The directory is a path
// without links.
func (r *Root) Refuse(dir string) { r.refused = dir }

// Close closes the root.
func (r *Root) Close() error { return r.dir.Close() }

// Path returns the kernel's path of the root.
func (r *Root) Path() string { return r.path }

// PathOf returns the kernel's path of an open file.
func PathOf(file *os.File) (string, error) {
	at, err := os.Readlink(FDPath(file))
	if errors.Is(err, unix.ENAMETOOLONG) { // by links it can be opened all the same
		return "", fmt.Errorf("find a directory whose path is longer than the kernel allows: %w", ErrTooMuch)
	}
	return at, err
}

// FDPath returns a path that leads to an open file itself, whatever file has its name by now.
func FDPath(file *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(file.Fd())) }

// checkProc returns an error unless the host's /proc is a proc file system, since FDPath relies on it.
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

// Where resolves a path in the container to one without links.
func (r *Root) Where(name string) (string, error) {
	file, err := r.Handle(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	return r.WhereIs(file)
}

// WhereIs returns the path in the container of a file that was looked up in it.
func (r *Root) WhereIs(file *os.File) (string, error) {
	at, err := PathOf(file)
	if err != nil {
		return "", err
	}
	if at == r.path || r.path == "/" {
		return path.Clean("/" + strings.TrimPrefix(at, r.path)), nil
	}
	inside, ok := strings.CutPrefix(at, r.path+"/")
	if !ok { // moved out of the root since
		return "", &fs.PathError{Op: "find in the container", Path: at, Err: fs.ErrNotExist}
	}
	return "/" + inside, nil
}

// Handle opens the file that a path leads to in the container, through links too, only as a reference (O_PATH).
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

// Open opens a regular file or a directory for reading. It makes a Root an fs.FS whose links do not lead out of it.
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

// Reopen opens the file of a handle for reading, whatever file has its name by now.
//
// Open has checked /proc once. A library that checks it for each file mounts a /proc of its own each time, which delayed a
// container's start by twenty milliseconds.
func (r *Root) Reopen(handle *os.File) (*os.File, error) {
	file, err := os.OpenFile(FDPath(handle), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, r.denied(int(handle.Fd()), err)
	}
	return file, nil
}

// ErrUnreadable is returned for a file or directory of the root file system that this process may not read.
var ErrUnreadable = errors.New("the container's root may not look into it, though other users in the container might; " +
	"change its owner in the image (chown) to a user that the container's user namespace has")

// denied returns ErrUnreadable for EACCES on a file of the root file system. Root may not read some volumes on network file
// systems, and nor may the container; but a file of the root file system only if its owner does not exist in the container's
// user namespace, which an image's author can arrange.
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

// MountID returns the ID of the mount through which a file was opened.
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

// Names returns the names in a directory, sorted.
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

// Unreachable reports whether an error means that a program in the container could not read the path either.
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
