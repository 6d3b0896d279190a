// Package shadow knows the shadow libraries as files: their names, what tells one from the driver's own, and where things lie
// in a container that has them. It imports little, since the hooks are to start quickly.
package shadow

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// The libraries that a shadow stands in front of, by SONAME. Without a shadow libcuda there is no limit.
const (
	CUDA = "libcuda.so.1"
	NVML = "libnvidia-ml.so.1"
)

// ContainerDir is the directory in the container that is ours. The shadow library looks for regions in its "claims".
const ContainerDir = "/.tranche"

// Behind is where the driver's own library lies, as seen from the directory of the shadow library with that
// SONAME. The shadow names it so in its first DT_NEEDED, after $ORIGIN/, so the two always go together. The file is not
// called by its SONAME: a job that puts this directory into LD_LIBRARY_PATH is still to find the shadow.
func Behind(soname string) string {
	return ".tranche/driver-" + strings.TrimSuffix(soname, ".1")
}

// SONAME is the SONAME of the shadow library that belongs over a file, by the file's name: libcuda.so.1,
// libcuda.so.570.124.06, or libcuda.so alone. It is "" where none belongs.
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

// Check makes sure that a file is the shadow library with that SONAME. It has the driver's name, so what lies in
// a directory under that name may as well be the driver, under which there would be no limit at all.
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

// dependencies are the DT_NEEDED entries of a library.
func dependencies(file string) ([]string, error) {
	switch info, err := os.Stat(file); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // one that is a pipe would keep us waiting
		return nil, errors.New("it is no regular file")
	}
	library, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer library.Close()
	return library.ImportedLibraries()
}
