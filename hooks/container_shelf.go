package hooks

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// maxCopies bounds the memory that the shadows of one container take. Images have one copy or two.
const maxCopies = 64

type unixStat = syscall.Stat_t

// shelf is the directory in the container where copies of the driver lie, each with its shadow: a file system of its
// own, which the runtime has mounted for that, and which only we write.
type shelf struct {
	mount  *os.File
	device uint64
	// dir is nil until there is something to put on the shelf: it is read-only until then.
	dir *os.Root
	// sources are the shadow libraries' contents, by SONAME.
	sources   map[string][]byte
	shadowDir string
	shadows   map[shelved]*os.File
	next      int
}

// shelved is a driver's library on the shelf, and as which library it is taken.
type shelved struct {
	identity
	soname string
}

func openShelf(root *rootfs.Root, shadowDir string) (*shelf, error) {
	mount, err := root.Handle(shadow.CopiesDir)
	if err != nil {
		return nil, fmt.Errorf("open the place for copies of the driver, %s: %w", shadow.CopiesDir, err)
	}
	s := &shelf{mount: mount, shadowDir: shadowDir, sources: map[string][]byte{}, shadows: map[shelved]*os.File{}}
	if err := s.check(root); err != nil {
		_ = mount.Close()
		return nil, fmt.Errorf("open the place for copies of the driver, %s: %w", shadow.CopiesDir, err)
	}
	return s, nil
}

// check makes sure that the shelf is a file system that nothing else is in: were it part of another, one of the host's
// say, we would write there.
func (s *shelf) check(root *rootfs.Root) error {
	above, err := root.Handle(shadow.ContainerDir)
	if err != nil {
		return err
	}
	defer above.Close()
	aboveInfo, err := above.Stat()
	if err != nil {
		return err
	}
	info, err := s.mount.Stat()
	if err != nil {
		return err
	}
	at, err := root.WhereIs(s.mount)
	if err != nil {
		return err
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(s.mount.Fd()), &system); err != nil {
		return err
	}
	s.device = identityOf(info).device
	if at != shadow.CopiesDir || system.Type != unix.TMPFS_MAGIC || s.device == identityOf(aboveInfo).device {
		return errors.New("it is not the tmpfs that Tranche's edits of the spec mount there; another hook or runtime has " +
			"taken it away, or mounted something over it")
	}
	return nil
}

// holds tells whether a file is one of the shadows here. What is mounted here is on file systems of its own.
func (s *shelf) holds(file identity) bool { return file.device == s.device }

// unlock makes the shelf writable.
func (s *shelf) unlock() (err error) {
	if s.dir != nil {
		return nil
	}
	if err := s.remount(0); err != nil {
		return fmt.Errorf("make the place for copies of the driver, %s, writable: %w", shadow.CopiesDir, err)
	}
	if s.dir, err = os.OpenRoot(rootfs.FDPath(s.mount)); err != nil {
		return err
	}
	there, err := fs.ReadDir(s.dir.FS(), ".")
	s.next = len(there)
	return err
}

// remount changes the file system, not just this mount of it: the shadows are mounts of it, too.
func (s *shelf) remount(flag uintptr) error {
	return unix.Mount("", rootfs.FDPath(s.mount), "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|flag, "")
}

// close makes the shelf read-only again. Whoever could write there could put a library without a limit in a shadow's place.
func (s *shelf) close() error {
	defer s.mount.Close()
	if s.dir == nil {
		return nil
	}
	for _, library := range s.shadows {
		_ = library.Close()
	}
	_ = s.dir.Close()
	if err := s.remount(unix.MS_RDONLY); err != nil {
		return fmt.Errorf("make the place for copies of the driver, %s, read-only: %w", shadow.CopiesDir, err)
	}
	return nil
}

// shadowOf puts a driver's library on the shelf, once, and returns the shadow that names it there.
func (s *shelf) shadowOf(driver *os.File, soname string) (*os.File, error) {
	info, err := driver.Stat()
	if err != nil {
		return nil, err
	}
	key := shelved{identityOf(info), soname}
	if library, ok := s.shadows[key]; ok {
		return library, nil
	}
	if err := s.unlock(); err != nil {
		return nil, err
	}
	number := s.next
	if number == maxCopies {
		return nil, fmt.Errorf("it is copy %d of the driver in this container, and at most %d are shadowed; remove some "+
			"from the image", number+1, maxCopies)
	}
	s.next++
	dir := filepath.Base(shadow.CopyDir(number))
	if err := s.dir.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make room for a copy of the driver: %w", err)
	}
	if err := s.putDriver(driver, key, filepath.Join(dir, filepath.Base(shadow.Behind(soname)))); err != nil {
		return nil, fmt.Errorf("put the driver's library behind the shadow: %w", err)
	}
	library, err := s.putShadow(soname, number, filepath.Join(dir, soname))
	if err != nil {
		return nil, err
	}
	s.shadows[key] = library
	return library, nil
}

// putDriver mounts the library. Its content is not read: the image may hold anything under that name, of any size.
func (s *shelf) putDriver(driver *os.File, key shelved, name string) error {
	if err := s.dir.WriteFile(name, nil, 0o755); err != nil {
		return err
	}
	empty, err := s.handle(name)
	if err != nil {
		return err
	}
	defer empty.Close()
	if err := bindMount(driver, empty); err != nil {
		return err
	}
	mounted, err := s.handle(name)
	if err != nil {
		return err
	}
	defer mounted.Close()
	info, err := mounted.Stat()
	if err != nil {
		return err
	}
	if identityOf(info) != key.identity {
		return errors.New("another file is mounted than was found")
	}
	return readOnly(mounted)
}

func (s *shelf) putShadow(soname string, number int, name string) (*os.File, error) {
	source, err := s.source(soname)
	if err != nil {
		return nil, err
	}
	content, err := shadow.OfCopy(source, soname, number)
	if err != nil {
		return nil, err
	}
	if err := s.dir.WriteFile(name, content, 0o755); err != nil {
		return nil, fmt.Errorf("write the shadow of a copy of the driver: %w", err)
	}
	return s.handle(name)
}

// maxShadowBytes is far more than a shadow library has.
const maxShadowBytes = 16 << 20

// source reads a shadow library.
func (s *shelf) source(soname string) ([]byte, error) {
	if content, ok := s.sources[soname]; ok {
		return content, nil
	}
	path := filepath.Join(s.shadowDir, soname)
	if err := shadow.Check(path, soname); err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxShadowBytes))
	s.sources[soname] = content
	return content, err
}

// handle is a file on the shelf, with what is mounted on it.
func (s *shelf) handle(name string) (*os.File, error) {
	return s.dir.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
}
