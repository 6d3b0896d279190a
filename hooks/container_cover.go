package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// coverTries bounds how often a file is covered anew because its name leads to another one by then.
const coverTries = 16

// identity tells a file from all others, whatever its names.
type identity struct{ device, inode uint64 }

// covers puts shadows over files.
type covers struct {
	root *rootfs.Root
	// plain are the shadow libraries that the spec mounts, which seek the driver beside the name they are loaded by. Those
	// on the shelf find it wherever they are.
	plain map[identity]bool
	shelf *shelf
}

func newCovers(root *rootfs.Root, shadowDir string) (*covers, error) {
	shelf, err := openShelf(root, shadowDir)
	if err != nil {
		return nil, err
	}
	c := &covers{root: root, plain: map[identity]bool{}, shelf: shelf}
	for _, soname := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		info, err := os.Stat(filepath.Join(shadowDir, soname))
		if errors.Is(err, fs.ErrNotExist) {
			continue // said where it is needed
		}
		if err != nil {
			return nil, err
		}
		c.plain[identityOf(info)] = true
	}
	return c, nil
}

func (c *covers) close() error { return c.shelf.close() }

// cover makes a name in the container lead to the shadow, if it leads to a library at all.
//
// Whoever can change the directory may swap the file while we work. What is covered is the file that was opened, never
// what is under its name by then; so the name is looked up again, until it leads to a shadow.
func (c *covers) cover(lib library) error {
	for range coverTries {
		done, err := c.try(lib)
		if named := (*fs.PathError)(nil); errors.As(err, &named) && named.Path == lib.path {
			return err
		}
		if err != nil {
			return fmt.Errorf("%s: %w", lib.path, err)
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("%s is another file each time it is looked at; something outside the container changes it: "+
		"stop that, or take the directory out of the container", lib.path)
}

// try covers what a name leads to, and reports whether there was nothing left to do.
func (c *covers) try(lib library) (done bool, err error) {
	file, err := c.root.Handle(lib.path)
	if rootfs.Unreachable(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() {
		return true, nil
	}
	if coverable, err := c.coverable(file); err != nil || !coverable {
		return !coverable, err
	}
	soname, err := c.sonameOf(file, lib)
	if err != nil || soname == "" {
		return soname == "", err
	}
	switch id := identityOf(info); {
	case c.shelf.holds(id), c.plain[id] && c.has(behind(lib.path, soname)):
		return true, nil
	case c.plain[id]:
		return c.coverShadow(file, soname)
	}
	return false, c.put(file, file, soname)
}

// sonameOf is the library of the driver that a file is, "" for none. A program that asks for libcuda by whatever name gets
// what the loader has already loaded as such, by the name that the library itself has.
func (c *covers) sonameOf(file *os.File, lib library) (string, error) {
	if lib.soname == shadow.CUDA {
		return lib.soname, nil
	}
	opened, err := c.root.Reopen(file)
	if rootfs.Unreachable(err) {
		return lib.soname, nil
	}
	if err != nil {
		return "", err
	}
	defer opened.Close()
	if own := shadow.SONAME(librarySONAME(opened)); own == shadow.CUDA || lib.soname == "" {
		return own, nil
	}
	return lib.soname, nil
}

// put mounts the shadow for a driver's library over a file, which is that library or a shadow of it.
func (c *covers) put(over, driver *os.File, soname string) error {
	if err := refuseShared(over); err != nil {
		return err
	}
	library, err := c.shelf.shadowOf(driver, soname)
	if err != nil {
		return err
	}
	if err := bindMount(library, over); err != nil && !errors.Is(err, unix.ENOENT) { // it was removed: look again
		return fmt.Errorf("mount the shadow over it: %w", err)
	}
	return nil
}

func (c *covers) has(name string) bool {
	file, err := c.root.Handle(name)
	return err == nil && file.Close() == nil
}

// coverShadow covers a shadow that the spec mounted, and that a link from another directory leads to, by one that finds
// the same driver from everywhere.
func (c *covers) coverShadow(file *os.File, soname string) (bool, error) {
	at, err := c.root.WhereIs(file)
	if rootfs.Unreachable(err) {
		return false, nil // moved: look again
	}
	if err != nil {
		return false, err
	}
	driver, err := c.root.Handle(behind(at, soname))
	if rootfs.Unreachable(err) {
		return true, nil // a shadow without a driver: it loads nowhere
	}
	if err != nil {
		return false, err
	}
	defer driver.Close()
	return false, c.put(file, driver, soname)
}

// behind is where a plain shadow that is loaded by a name seeks the driver.
func behind(at, soname string) string {
	return filepath.Dir(at) + "/" + shadow.Behind(soname)
}

// coverable tells whether a file can be a library of the driver. An image that gives the driver's name to a file of the
// kernel's, or to one of our own, wants to see it covered: the file that a process writes to get its security label, say.
func (c *covers) coverable(file *os.File) (bool, error) {
	at, err := c.root.WhereIs(file)
	if err != nil {
		return true, nil //nolint:nilerr // moved away since: it is covered all the same, and its name looked up again
	}
	if strings.HasPrefix(at, shadow.ContainerDir+"/") {
		return false, nil
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &system); err != nil {
		return false, fmt.Errorf("look at its file system: %w", err)
	}
	switch system.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.SELINUX_MAGIC, unix.BPF_FS_MAGIC, unix.NSFS_MAGIC:
		return false, nil
	}
	return true, nil
}

func identityOf(info fs.FileInfo) identity {
	stat, _ := info.Sys().(*unixStat)
	return identity{device: stat.Dev, inode: stat.Ino}
}
