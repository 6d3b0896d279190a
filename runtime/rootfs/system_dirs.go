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
