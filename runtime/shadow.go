package runtime

import (
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

// realDir is the directory beside a shadow library that holds the driver's own. The shadow names it as
// $ORIGIN/.tranche/<SONAME> in its first DT_NEEDED, so the two always go together.
const realDir = ".tranche"

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
		beside := path.Join(path.Dir(over), realDir, soname)
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

// library returns the path of a shadow library, which must exist: a container without it would have no limit.
func (s shadowLibraries) library(soname string) (string, error) {
	file := filepath.Join(s.dir, soname)
	switch info, err := os.Stat(file); {
	case err != nil:
		return "", fmt.Errorf("find the shadow library %s: %w; install Tranche's libraries there or set shadow_dir to "+
			"the directory that has them", file, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("find the shadow library %s: it is no regular file (%s); set shadow_dir to the directory "+
			"that has Tranche's libraries", file, info.Mode().Type())
	}
	return file, nil
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
