package runtime

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

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
		library, err := s.library(soname)
		if err != nil {
			return err
		}
		over := containerPath(mount.Destination)
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

// library returns the path of a shadow library. It has to be one: a container without it would have no limit.
func (s shadowLibraries) library(soname string) (string, error) {
	file := filepath.Join(s.dir, soname)
	return file, shadow.Check(file, soname)
}

// shadowedBy returns the SONAME of the shadow library that belongs over a mount, or "" for a mount of anything else.
func shadowedBy(mount specs.Mount) string {
	if isBind(mount) {
		return shadow.SONAME(mount.Destination)
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
