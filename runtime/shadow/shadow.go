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
	"slices"
	"strings"
)

// The libraries that a shadow stands in front of, by SONAME. Without a shadow libcuda there is no limit.
const (
	CUDA = "libcuda.so.1"
	NVML = "libnvidia-ml.so.1"
)

// The directories of the two other builds of libcuda.so.1, in that of the shadow libraries. In both, launches wait for their
// claim's turn on the GPU; the second limits no memory.
const (
	governedDir = "governed"
	computeDir  = "compute"
)

// Libraries are the shadow libraries that a container or a command gets.
type Libraries struct {
	// Dir has the shadow libraries.
	Dir string
	// Governed reports that the programs are to compute in turns: one of their claims is governed.
	Governed bool
	// ComputeOnly reports that the library has the programs compute in turns and limits no memory, since the driver does.
	ComputeOnly bool
}

// SONAMEs returns the SONAMEs of the libraries that are shadowed. Where the driver limits memory, NVML shows the limit by itself.
func (l Libraries) SONAMEs() []string {
	if l.ComputeOnly {
		return []string{CUDA}
	}
	return []string{CUDA, NVML}
}

// Shadows reports whether the library with a SONAME is shadowed.
func (l Libraries) Shadows(soname string) bool { return slices.Contains(l.SONAMEs(), soname) }

// Path returns the file of a shadow library.
func (l Libraries) Path(soname string) string {
	switch {
	case soname == CUDA && l.ComputeOnly:
		return filepath.Join(l.Dir, computeDir, soname)
	case soname == CUDA && l.Governed:
		return filepath.Join(l.Dir, governedDir, soname)
	default:
		return filepath.Join(l.Dir, soname)
	}
}

// Files returns the paths of all shadow libraries below their directory.
func Files() []string {
	return []string{CUDA, NVML, filepath.Join(governedDir, CUDA), filepath.Join(computeDir, CUDA)}
}

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

// beside returns the path by which a shadow library looks for the driver's: in the directory that it was loaded from.
func beside(soname string) string { return "$ORIGIN/" + Behind(soname) }

// Check returns an error unless a file is the shadow library with that SONAME. A file of that name may also be the driver's,
// which would enforce no limit.
func Check(file, soname string) error {
	library, _, err := openShadow(file, soname)
	if err != nil {
		return err
	}
	return library.Close()
}

// openShadow opens a file that Check accepts, and returns at which byte it has the path of the driver.
func openShadow(file, soname string) (library *os.File, at int64, err error) {
	const remedy = "install Tranche's libraries there, or set shadow_dir (--shadow-dir) to the directory that has them"
	if library, err = open(file); err != nil {
		return nil, 0, fmt.Errorf("no shadow library %s: %w; %s", file, err, remedy)
	}
	at, err = firstDependency(library)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("no shadow library %s: %w; %s", file, err, remedy), library.Close())
	}
	behind := make([]byte, len(beside(soname))+1) // with the zero byte that ends it
	if _, err := library.ReadAt(behind, at); err != nil || string(behind) != beside(soname)+"\x00" {
		return nil, 0, errors.Join(fmt.Errorf("%s is no shadow library of Tranche: its first dependency is not %s, so there "+
			"would be no limit; %s", file, beside(soname), remedy), library.Close())
	}
	return library, at, nil
}

// firstDependency returns at which byte of a library the name of its first dependency is: 0, where none can be, if there is no
// dependency.
func firstDependency(file *os.File) (int64, error) {
	library, err := elf.NewFile(file)
	if err != nil {
		return 0, err
	}
	needed, err := library.DynValue(elf.DT_NEEDED)
	dynamic := library.SectionByType(elf.SHT_DYNAMIC)
	if err != nil || len(needed) == 0 || int(dynamic.Link) >= len(library.Sections) {
		return 0, err
	}
	return int64(library.Sections[dynamic.Link].Offset + needed[0]), nil
}

// versionSection holds the version of a shadow library, as text that ends with a zero byte.
const versionSection = ".tranche.version"

// Version returns the version of Tranche that a shadow library was built from.
func Version(file string) (string, error) {
	opened, err := open(file)
	if err != nil {
		return "", err
	}
	defer opened.Close()
	library, err := elf.NewFile(opened)
	if err != nil {
		return "", err
	}
	section := library.Section(versionSection)
	if section == nil {
		return "", fmt.Errorf("it has no section %s", versionSection)
	}
	text, err := section.Data()
	return strings.TrimRight(string(text), "\x00"), err
}

func open(file string) (*os.File, error) {
	switch info, err := os.Stat(file); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // one that is a pipe would keep us waiting
		return nil, errors.New("it is no regular file")
	}
	return os.Open(file)
}
