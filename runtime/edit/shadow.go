package edit

import (
	"fmt"
	"os"
	"path"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/ocispec"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// shadowOptions mount a shadow library read-only, and so that the loader can map it executable. The mount is private, since
// the createContainer hook mounts over it, which must not appear on the host.
var shadowOptions = []string{"ro", "nosuid", "nodev", "bind", "private"}

// shadowLibraries mounts a shadow library over every driver library that the spec mounts, and the driver's library beside it.
// It handles all mounts, not only those of CDI, since a job may mount a driver copy. The createContainer hook mounts another
// over each, with an absolute path: see docs/design/driver-copies.md.
type shadowLibraries struct {
	shadow.Libraries
}

// Modify moves the mounts of driver libraries to the end of the spec, so that no other mount hides them.
func (s shadowLibraries) Modify(spec *specs.Spec) error {
	var others, shadowed []specs.Mount
	reals := map[string]string{} // destination of a driver's library → its file on the host
	for _, mount := range spec.Mounts {
		soname := shadowedBy(mount)
		if !s.Shadows(soname) {
			others = append(others, mount)
			continue
		}
		library, err := s.library(soname)
		if err != nil {
			return err
		}
		over := ocispec.ContainerPath(mount.Destination)
		beside := path.Join(path.Dir(over), shadow.Behind(soname))
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
			Source:      library,
			Options:     slices.Clone(shadowOptions),
		})
	}
	spec.Mounts = slices.Concat(others, shadowed)
	return nil
}

// library returns the path of a shadow library, or an error if the file is another: the container would have no limit.
func (s shadowLibraries) library(soname string) (string, error) {
	file := s.Path(soname)
	return file, shadow.Check(file, soname)
}

// shadowedBy returns the SONAME of the shadow library that belongs over a mount, or "" for a mount of anything else.
func shadowedBy(mount specs.Mount) string {
	if ocispec.IsBind(mount) {
		return shadow.SONAME(mount.Destination)
	}
	return ""
}

func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
