package shadow

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CopiesDir is the directory in the container in which the createContainer hook mounts the driver copies that it shadows, each
// in a directory of its own, named by four digits.
const CopiesDir = ContainerDir + "/c"

// CopyDir returns the directory of the driver copy with that number.
func CopyDir(number int) string { return fmt.Sprintf("%s/%04d", CopiesDir, number) }

// OfCopy writes into an empty file the shadow library for the driver copy with that number, made from the one in a file, which
// looks for the driver beside itself. It has the copy's absolute path instead, so that no file has to be created beside the
// copy: its directory may be read-only, or a shared volume, and links in other directories may lead to it.
//
// The two paths are equally long, so that one replaces the other in the file.
func OfCopy(into *os.File, file, soname string, number int) error {
	library, at, err := openShadow(file, soname)
	if err != nil {
		return err
	}
	defer library.Close()
	absolute := filepath.Join(CopyDir(number), filepath.Base(Behind(soname)))
	if len(absolute) != len(beside(soname)) {
		return fmt.Errorf("make the shadow of copy %d: %s is not as long as %s", number, absolute, beside(soname))
	}
	if err := copyFile(into, library); err != nil {
		return err
	}
	_, err = into.WriteAt([]byte(absolute), at)
	return err
}

// copyFile copies a file in the kernel, since a container waits for it, or by reads and writes if its file system cannot.
func copyFile(into, from *os.File) error {
	for {
		switch n, err := unix.Sendfile(int(into.Fd()), int(from.Fd()), nil, 1<<30); {
		case err != nil:
			_, err = io.Copy(into, from)
			return err
		case n == 0:
			return nil
		}
	}
}
