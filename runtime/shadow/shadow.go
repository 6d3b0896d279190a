// Package shadow has the names and paths of the shadow libraries, recognises them, and creates those for driver copies. It imports
// little, so that the hooks start quickly.
package shadow

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// The libraries that a shadow stands in front of, by SONAME. Without a shadow libcuda there is no limit.
const (
	CUDA = "libcuda.so.1"
	NVML = "libnvidia-ml.so.1"
)

// governedDir has the second build of libcuda.so.1, in the directory of the shadow libraries. Its launches wait for their claim's
// turn on the GPU.
const governedDir = "governed"

// Libraries are the shadow libraries that a container or a command gets.
type Libraries struct {
	// Dir has the shadow libraries.
	Dir string
	// Governed reports that the programs are to compute in turns: one of their claims is governed.
	Governed bool
}

// Path returns the file of a shadow library.
func (l Libraries) Path(soname string) string {
	if l.Governed && soname == CUDA {
		return filepath.Join(l.Dir, governedDir, soname)
	}
	return filepath.Join(l.Dir, soname)
}

// Files returns the paths of all shadow libraries below their directory.
func Files() []string { return []string{CUDA, NVML, filepath.Join(governedDir, CUDA)} }

// ContainerDir is Tranche's directory in the container. The shadow library looks for regions in its "claims".
const ContainerDir = "/.tranche"

// Behind returns the path of the driver's own library, relative to the directory of the shadow library with that SONAME. It is
// in the shadow's first DT_NEEDED, after $ORIGIN/. The file does not have the SONAME as its name, so that a job with this
// directory in LD_LIBRARY_PATH still gets the shadow.
func Behind(soname string) string {
	return ".tranche/driver-" + strings.TrimSuffix(soname, ".1")
}

// SONAME returns the SONAME of the shadow library for a file, by the file's name: libcuda.so.1, libcuda.so.570.124.06, or
// libcuda.so. It is "" for other files.
func SONAME(file string) string {
	base := path.Base(file)
	for _, soname := range []string{CUDA, NVML} {
		stem := strings.TrimSuffix(soname, ".1")
		if base == stem || strings.HasPrefix(base, stem+".") {
			return soname
		}
	}
	return ""
}

// Check returns an error unless a file is the shadow library with that SONAME. A file of that name may also be the driver's,
// which would enforce no limit.
func Check(file, soname string) error {
	const remedy = "install Tranche's libraries there, or set shadow_dir (--shadow-dir) to the directory that has them"
	needed, err := dependencies(file)
	if err != nil {
		return fmt.Errorf("no shadow library %s: %w; %s", file, err, remedy)
	}
	if behind := "$ORIGIN/" + Behind(soname); len(needed) == 0 || needed[0] != behind {
		return fmt.Errorf("%s is no shadow library of Tranche: its first dependency is not %s, so there would be no "+
			"limit; %s", file, behind, remedy)
	}
	return nil
}

// versionSection holds the version of a shadow library, as text that ends with a zero byte.
const versionSection = ".tranche.version"

// Version returns the version of Tranche that a shadow library was built from.
func Version(file string) (string, error) {
	library, err := open(file)
	if err != nil {
		return "", err
	}
	defer library.Close()
	section := library.Section(versionSection)
	if section == nil {
		return "", fmt.Errorf("it has no section %s", versionSection)
	}
	text, err := section.Data()
	return strings.TrimRight(string(text), "\x00"), err
}

// dependencies returns the DT_NEEDED entries of a library.
func dependencies(file string) ([]string, error) {
	library, err := open(file)
	if err != nil {
		return nil, err
	}
	defer library.Close()
	return library.ImportedLibraries()
}

func open(file string) (*elf.File, error) {
	switch info, err := os.Stat(file); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // one that is a pipe would keep us waiting
		return nil, errors.New("it is no regular file")
	}
	return elf.Open(file)
}
