package shadow

import (
	"bytes"
	"fmt"
	"path/filepath"
)

// CopiesDir is the directory in the container in which the createContainer hook mounts the driver copies that it shadows, each
// in a directory of its own, named by four digits.
const CopiesDir = ContainerDir + "/c"

// CopyDir returns the directory of the driver copy with that number.
func CopyDir(number int) string { return fmt.Sprintf("%s/%04d", CopiesDir, number) }

// OfCopy returns the shadow library for the driver copy with that number, made from the one that looks for the driver beside
// itself. It has the copy's absolute path instead, so that no file has to be created beside the copy: its directory may be
// read-only, or a shared volume, and links in other directories may lead to it.
//
// The two paths are equally long, so that one replaces the other in the file.
func OfCopy(shadow []byte, soname string, number int) ([]byte, error) {
	beside := []byte("$ORIGIN/" + Behind(soname) + "\x00")
	absolute := []byte(filepath.Join(CopyDir(number), filepath.Base(Behind(soname))) + "\x00")
	if bytes.Count(shadow, beside) != 1 || len(beside) != len(absolute) {
		return nil, fmt.Errorf("make the shadow of copy %d: the shadow library does not name %q once, as those of this "+
			"version of Tranche do; install the shadow libraries and tranche-hook of one version", number, beside)
	}
	return bytes.Replace(shadow, beside, absolute, 1), nil
}
