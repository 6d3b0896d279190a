package drivercopies

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// maxAttempts bounds how often a path is overmounted because it led to another file by then.
const maxAttempts = 16

// fileID identifies a file, whatever its names.
type fileID struct{ device, inode uint64 }

func fileIDOf(info fs.FileInfo) fileID {
	stat, _ := info.Sys().(*syscall.Stat_t)
	return fileID{device: stat.Dev, inode: stat.Ino}
}

// overmounter mounts shadows over driver copies.
type overmounter struct {
	root *rootfs.Root
	// plain are the shadow libraries that the spec mounts, which name the driver by $ORIGIN. Those in the copies directory
	// have its absolute path.
	plain  map[fileID]bool
	copies *copiesDir
}

func newOvermounter(root *rootfs.Root, libraries shadow.Libraries) (*overmounter, error) {
	copies, err := openCopiesDir(root, libraries)
	if err != nil {
		return nil, err
	}
	o := &overmounter{root: root, plain: map[fileID]bool{}, copies: copies}
	for _, soname := range libraries.SONAMEs() {
		info, err := os.Stat(libraries.Path(soname))
		if errors.Is(err, fs.ErrNotExist) {
			continue // reported if it is needed
		}
		if err != nil {
			return nil, err
		}
		o.plain[fileIDOf(info)] = true
	}
	return o, nil
}

func (o *overmounter) close() error { return o.copies.close() }

// mount makes a path in the container lead to the shadow, if it leads to a library at all.
//
// Whoever can change the directory may swap the file meanwhile. The file that was opened is overmounted, never the one that
// has its name by then; so the path is looked up again, until it leads to a shadow.
func (o *overmounter) mount(lib library) error {
	for range maxAttempts {
		done, err := o.tryMount(lib)
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
	return fmt.Errorf("%s: a process outside the container keeps replacing it; stop that process, or remove the directory "+
		"from the container", lib.path)
}

// tryMount overmounts the file that a path leads to, and reports whether there was nothing left to do.
func (o *overmounter) tryMount(lib library) (done bool, err error) {
	file, err := o.root.Handle(lib.path)
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
	if may, err := o.mayBeLibrary(file); err != nil || !may {
		return !may, err
	}
	soname, err := o.sonameOf(file, lib)
	if err != nil || !o.copies.libraries.Shadows(soname) {
		return err == nil, err
	}
	switch id := fileIDOf(info); {
	case o.copies.contains(id):
		return true, nil
	case o.plain[id]:
		return o.overmountShadow(file, soname)
	}
	return false, o.overmount(file, file, soname)
}

// sonameOf returns the SONAME of the driver's library that a file is, "" for none. A program that loads libcuda by any name
// gets the library that is already loaded under the SONAME in its file.
func (o *overmounter) sonameOf(file *os.File, lib library) (string, error) {
	if lib.soname == shadow.CUDA {
		return lib.soname, nil
	}
	opened, err := o.root.Reopen(file)
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

// overmount mounts the shadow of a driver copy over a file, which is that copy or a shadow of it.
func (o *overmounter) overmount(file, driver *os.File, soname string) error {
	if err := refuseShared(file); err != nil {
		return err
	}
	library, err := o.copies.shadowOf(driver, soname)
	if err != nil {
		return err
	}
	if err := bindMount(library, file); err != nil && !errors.Is(err, unix.ENOENT) { // removed: the caller looks again
		return fmt.Errorf("mount the shadow over it: %w", err)
	}
	return nil
}

// overmountShadow mounts over a shadow that the spec mounted one that names the same driver by an absolute path: links in
// other directories may lead there, and the loader refuses $ORIGIN in programs with the set-user-ID bit or capabilities.
func (o *overmounter) overmountShadow(file *os.File, soname string) (done bool, err error) {
	at, err := o.root.WhereIs(file)
	if rootfs.Unreachable(err) {
		return false, nil // moved: the caller looks again
	}
	if err != nil {
		return false, err
	}
	driver, err := o.root.Handle(behind(at, soname))
	if rootfs.Unreachable(err) {
		return true, nil // a shadow without a driver cannot be loaded
	}
	if err != nil {
		return false, err
	}
	defer driver.Close()
	return false, o.overmount(file, driver, soname)
}

// behind returns the path at which a plain shadow that is loaded from a path looks for the driver.
func behind(at, soname string) string {
	return filepath.Dir(at) + "/" + shadow.Behind(soname)
}

// mayBeLibrary reports whether a file can be a library of the driver. An image may give the driver's name to a file of the
// kernel's or of Tranche's own in order to have it overmounted, such as the one that sets a process's security label.
func (o *overmounter) mayBeLibrary(file *os.File) (bool, error) {
	at, err := o.root.WhereIs(file)
	if err != nil {
		return true, nil //nolint:nilerr // moved away: it is overmounted all the same, and its name looked up again
	}
	if strings.HasPrefix(at, shadow.ContainerDir+"/") {
		return false, nil
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &system); err != nil {
		return false, fmt.Errorf("read its file system's type: %w", err)
	}
	switch system.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.SELINUX_MAGIC, unix.BPF_FS_MAGIC, unix.NSFS_MAGIC:
		return false, nil
	}
	return true, nil
}
