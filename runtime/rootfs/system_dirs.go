package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RefuseLinkedDirs refuses the root file system at a path of the host's if its /dev, /proc or /sys is a link, before an
// OCI runtime works on it. Runtimes mount there inside the root, and then make device nodes and links by the paths of the
// host, where such a link leads out of it: runc makes ptmx, fd and stdin in the directory of the host's that it names,
// crun also null, zero and random.
func RefuseLinkedDirs(dir string) error {
	for _, name := range []string{"dev", "proc", "sys"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("check /%s of the image: %w", name, err)
		}
		if info.Mode().Type() == fs.ModeSymlink {
			return fmt.Errorf("check /%s of the image: it is a link, by which the OCI runtime would make files on the host; "+
				"make it a directory in the image", name)
		}
	}
	return nil
}

// maxUserFileBytes is the size of the largest /etc/passwd and /etc/group that a start reads.
const maxUserFileBytes = 64 << 20

// RefuseUserFiles refuses the root file system at a path of the host's if its /etc/passwd or /etc/group is no file that can be
// read in a moment. containerd and the OCI runtime look users up in them, and would wait for good for a writer of a FIFO. A
// file that is missing, or cannot be found, is theirs to report.
func RefuseUserFiles(dir string) error {
	root, err := Open(dir, "/")
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{"/etc/passwd", "/etc/group"} {
		handle, err := root.Handle(name)
		if err != nil {
			continue
		}
		info, err := handle.Stat()
		handle.Close()
		switch {
		case err != nil:
			return fmt.Errorf("check %s of the image: %w", name, err)
		case !info.Mode().IsRegular() && !info.IsDir():
			return fmt.Errorf("check %s of the image: it is no file (%s); make it one in the image", name, info.Mode())
		case info.Size() > maxUserFileBytes:
			return fmt.Errorf("check %s of the image: it has %d MiB, more than %d", name, info.Size()>>20, maxUserFileBytes>>20)
		}
	}
	return nil
}
