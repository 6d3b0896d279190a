package shadow

import (
	"bytes"
	"fmt"
	"path/filepath"
)

// CopiesDir is where, in the container, the createContainer hook puts the copies of the driver that it has shadowed: each
// in a directory of its own, named by four digits.
const CopiesDir = ContainerDir + "/c"

// CopyDir is the directory of the copy with that number.
func CopyDir(number int) string { return fmt.Sprintf("%s/%04d", CopiesDir, number) }

// OfCopy makes the shadow library for the copy of the driver with that number out of the one that seeks the
// driver beside itself. It names the copy by an absolute path instead, so that nothing has to be put beside the copy:
// its directory may be read-only, or a volume that is not the container's alone, and links lead to it from others.
//
// The two names are equally long, so that one replaces the other where it stands in the file.
func OfCopy(shadow []byte, soname string, number int) ([]byte, error) {
	beside := []byte("$ORIGIN/" + Behind(soname) + "\x00")
	absolute := []byte(filepath.Join(CopyDir(number), filepath.Base(Behind(soname))) + "\x00")
	if bytes.Count(shadow, beside) != 1 || len(beside) != len(absolute) {
		return nil, fmt.Errorf("make the shadow of copy %d: the shadow library does not name %q once, as those of this "+
			"version of Tranche do; install the shadow libraries and tranche-hook of one version", number, beside)
	}
	return bytes.Replace(shadow, beside, absolute, 1), nil
}
