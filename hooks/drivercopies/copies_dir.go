package drivercopies

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// maxCopies bounds the memory that the shadows of one container take. Images have one driver copy or two.
const maxCopies = 64

// copiesDir is the directory in the container that holds each driver copy with its shadow: a tmpfs that the spec mounts for
// that and that only this hook writes.
type copiesDir struct {
	mount  *os.File
	device uint64
	// dir is nil until there is something to write: the tmpfs is read-only until then.
	dir       *os.Root
	libraries shadow.Libraries
	shadows   map[copyKey]*os.File
	next      int
}

// copyKey is a driver copy and the library that it is loaded as.
type copyKey struct {
	fileID
	soname string
}

func openCopiesDir(root *rootfs.Root, libraries shadow.Libraries) (*copiesDir, error) {
	mount, err := root.Handle(shadow.CopiesDir)
	if err != nil {
		return nil, fmt.Errorf("open the directory for driver copies, %s: %w", shadow.CopiesDir, err)
	}
	c := &copiesDir{mount: mount, libraries: libraries, shadows: map[copyKey]*os.File{}}
	if err := c.check(root); err != nil {
		_ = mount.Close()
		return nil, fmt.Errorf("open the directory for driver copies, %s: %w", shadow.CopiesDir, err)
	}
	return c, nil
}

// check returns an error unless the directory is a tmpfs of its own. If it were part of another file system, such as the
// host's, the hook would write there.
func (c *copiesDir) check(root *rootfs.Root) error {
	above, err := root.Handle(shadow.ContainerDir)
	if err != nil {
		return err
	}
	defer above.Close()
	aboveInfo, err := above.Stat()
	if err != nil {
		return err
	}
	info, err := c.mount.Stat()
	if err != nil {
		return err
	}
	at, err := root.WhereIs(c.mount)
	if err != nil {
		return err
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(c.mount.Fd()), &system); err != nil {
		return err
	}
	c.device = fileIDOf(info).device
	if at != shadow.CopiesDir || system.Type != unix.TMPFS_MAGIC || c.device == fileIDOf(aboveInfo).device {
		return errors.New("it is not the tmpfs that Tranche adds to the spec; another hook or the OCI runtime has removed " +
			"it or mounted over it")
	}
	return nil
}

// contains reports whether a file is one of the shadows here. What is mounted here is on other file systems.
func (c *copiesDir) contains(file fileID) bool { return file.device == c.device }

// makeWritable opens dir for writing.
func (c *copiesDir) makeWritable() (err error) {
	if c.dir != nil {
		return nil
	}
	if err := c.remount(0); err != nil {
		return fmt.Errorf("make the directory for driver copies, %s, writable: %w", shadow.CopiesDir, err)
	}
	if c.dir, err = os.OpenRoot(rootfs.FDPath(c.mount)); err != nil {
		return err
	}
	entries, err := fs.ReadDir(c.dir.FS(), ".")
	c.next = len(entries)
	return err
}

// remount changes the flags of the file system rather than of this mount: the shadows are mounts of the same file system.
func (c *copiesDir) remount(flag uintptr) error {
	return unix.Mount("", rootfs.FDPath(c.mount), "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|flag, "")
}

// close makes the directory read-only again. A process that could write there could replace a shadow by a library without
// a limit.
func (c *copiesDir) close() error {
	defer c.mount.Close()
	if c.dir == nil {
		return nil
	}
	for _, library := range c.shadows {
		_ = library.Close()
	}
	_ = c.dir.Close()
	if err := c.remount(unix.MS_RDONLY); err != nil {
		return fmt.Errorf("make the directory for driver copies, %s, read-only: %w", shadow.CopiesDir, err)
	}
	return nil
}

// shadowOf returns the shadow of a driver copy. The first time it mounts the copy in a directory of its own and writes the
// shadow beside it.
func (c *copiesDir) shadowOf(driver *os.File, soname string) (*os.File, error) {
	info, err := driver.Stat()
	if err != nil {
		return nil, err
	}
	key := copyKey{fileIDOf(info), soname}
	if library, ok := c.shadows[key]; ok {
		return library, nil
	}
	if err := c.makeWritable(); err != nil {
		return nil, err
	}
	number := c.next
	if number == maxCopies {
		return nil, fmt.Errorf("the container has more than %d driver copies; remove some from the image", maxCopies)
	}
	c.next++
	dir := filepath.Base(shadow.CopyDir(number))
	if err := c.dir.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create a directory for the driver copy: %w", err)
	}
	if err := c.mountDriver(driver, key, filepath.Join(dir, filepath.Base(shadow.Behind(soname)))); err != nil {
		return nil, fmt.Errorf("mount the driver copy behind the shadow: %w", err)
	}
	library, err := c.writeShadow(soname, number, filepath.Join(dir, soname))
	if err != nil {
		return nil, err
	}
	c.shadows[key] = library
	return library, nil
}

// mountDriver mounts the driver copy. Its content is not read: the image may have a file of any size under that name.
func (c *copiesDir) mountDriver(driver *os.File, key copyKey, name string) error {
	if err := c.dir.WriteFile(name, nil, 0o755); err != nil {
		return err
	}
	empty, err := c.handle(name)
	if err != nil {
		return err
	}
	defer empty.Close()
	if err := bindMount(driver, empty); err != nil {
		return err
	}
	mounted, err := c.handle(name)
	if err != nil {
		return err
	}
	defer mounted.Close()
	info, err := mounted.Stat()
	if err != nil {
		return err
	}
	if fileIDOf(info) != key.fileID {
		return errors.New("the mounted file is not the one that was found")
	}
	return remountReadOnly(mounted)
}

func (c *copiesDir) writeShadow(soname string, number int, name string) (*os.File, error) {
	file, err := c.dir.OpenFile(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o755)
	if err != nil {
		return nil, err
	}
	err = shadow.OfCopy(file, c.libraries.Path(soname), soname, number)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("write the shadow of a driver copy: %w", err)
	}
	return c.handle(name)
}

// handle opens a file here, with what is mounted on it, for nothing but to be named (O_PATH).
func (c *copiesDir) handle(name string) (*os.File, error) {
	return c.dir.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
}
