package runtime

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// The libraries that a shadow stands in front of, by SONAME. Without a shadow libcuda there is no limit.
const (
	libcuda = "libcuda.so.1"
	libnvml = "libnvidia-ml.so.1"
)

// BehindShadow is where the driver's own library lies, as seen from the directory of the shadow library with that
// SONAME. The shadow names it so in its first DT_NEEDED, after $ORIGIN/, so the two always go together. The file is not
// called by its SONAME: a job that puts this directory into LD_LIBRARY_PATH is still to find the shadow.
func BehindShadow(soname string) string {
	return ".tranche/driver-" + strings.TrimSuffix(soname, ".1")
}

// shadowOptions mount a shadow library: nobody in the container may write it, and the loader may map it executable.
var shadowOptions = []string{"ro", "nosuid", "nodev", "bind"}

// shadowLibraries puts the shadow libraries over every driver library that the spec mounts, and the driver's own beside
// them. It looks at all mounts, not only those that CDI brought, since a job may mount a copy of its own.
type shadowLibraries struct {
	dir string
}

// Modify moves the mounts of driver libraries to the end of the spec, so that no other mount hides them.
func (s shadowLibraries) Modify(spec *specs.Spec) error {
	var others, shadowed []specs.Mount
	reals := map[string]string{} // where a driver's library goes → its file on the host
	for _, mount := range spec.Mounts {
		soname := shadowedBy(mount)
		if soname == "" {
			others = append(others, mount)
			continue
		}
		shadow, err := s.library(soname)
		if err != nil {
			return err
		}
		over := containerPath(mount.Destination)
		beside := path.Join(path.Dir(over), BehindShadow(soname))
		if source, ok := reals[beside]; !ok {
			reals[beside] = mount.Source
			mount.Destination = beside
			shadowed = append(shadowed, mount)
		} else if !sameFile(source, mount.Source) {
			return fmt.Errorf("shadow %s: the spec mounts two different libraries there, %s and %s; mount only one",
				path.Join(path.Dir(over), soname), source, mount.Source)
		}
		shadowed = append(shadowed, specs.Mount{
			Destination: over,
			Type:        "bind",
			Source:      shadow,
			Options:     slices.Clone(shadowOptions),
		})
	}
	spec.Mounts = slices.Concat(others, shadowed)
	return nil
}

// library returns the path of a shadow library. It has to be one: a container without it would have no limit.
func (s shadowLibraries) library(soname string) (string, error) {
	file := filepath.Join(s.dir, soname)
	return file, CheckShadow(file, soname)
}

// CheckShadow makes sure that a file is the shadow library with that SONAME. It has the driver's name, so what lies in
// a directory under that name may as well be the driver, under which there would be no limit at all.
func CheckShadow(file, soname string) error {
	const remedy = "install Tranche's libraries there, or set shadow_dir (--shadow-dir) to the directory that has them"
	needed, err := dependencies(file)
	if err != nil {
		return fmt.Errorf("no shadow library %s: %w; %s", file, err, remedy)
	}
	if behind := "$ORIGIN/" + BehindShadow(soname); len(needed) == 0 || needed[0] != behind {
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

// shadowedBy returns the SONAME of the shadow library that belongs over a mount, or "" for a mount of anything else.
func shadowedBy(mount specs.Mount) string {
	if isBind(mount) {
		return shadowSONAME(mount.Destination)
	}
	return ""
}

// shadowSONAME goes by the name of a file: libcuda.so.1, libcuda.so.570.124.06, or libcuda.so alone.
func shadowSONAME(file string) string {
	base := path.Base(file)
	for _, soname := range []string{libcuda, libnvml} {
		stem := strings.TrimSuffix(soname, ".1")
		if base == stem || strings.HasPrefix(base, stem+".") {
			return soname
		}
	}
	return ""
}

func isBind(mount specs.Mount) bool {
	return mount.Type == "bind" || slices.Contains(mount.Options, "bind") || slices.Contains(mount.Options, "rbind")
}

// containerPath is a mount's destination as the runtime understands it: from the container's root, without detours.
func containerPath(destination string) string {
	return path.Clean("/" + destination)
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
