package runtime

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// usageFile is the part of a region that the container's processes write; see package region.
const usageFile = "usage"

var (
	// anchorOptions mount shadow.ContainerDir itself. As a mount it cannot be renamed or removed from inside, and since it is
	// read-only nobody in the container can put a region of his own making beside those that we mount.
	anchorOptions = []string{"ro", "nosuid", "nodev", "noexec", "mode=0755", "size=64k"}
	regionOptions = []string{"ro", "nosuid", "nodev", "noexec", "bind"}
	usageOptions  = []string{"rw", "nosuid", "nodev", "noexec", "bind"}
)

// regionMounts shows the container the regions of its claims: the directory read-only, so that the limit is the host's
// to state, and on top of it the usage file for its processes to write. They come last in the spec: nothing that the
// job or its image brings may cover or replace them.
type regionMounts struct {
	grants []Grant
}

// Modify appends the mounts, or refuses a spec that already mounts something of its own there.
func (r regionMounts) Modify(spec *specs.Spec) error {
	for _, mount := range spec.Mounts {
		at := containerPath(mount.Destination)
		if at == shadow.ContainerDir || strings.HasPrefix(at, shadow.ContainerDir+"/") {
			return fmt.Errorf("mount the regions at %s: the container already mounts %q at %s, which is not for jobs "+
				"to use; mount it somewhere else", shadow.ContainerDir, mount.Source, mount.Destination)
		}
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: shadow.ContainerDir,
		Type:        "tmpfs",
		Source:      "tmpfs",
		Options:     slices.Clone(anchorOptions),
	})
	for _, grant := range r.grants {
		at := path.Join(shadow.ContainerDir, "claims", grant.Claim.ID)
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: at,
			Type:        "bind",
			Source:      grant.RegionDir,
			Options:     slices.Clone(regionOptions),
		}, specs.Mount{
			Destination: path.Join(at, usageFile),
			Type:        "bind",
			Source:      filepath.Join(grant.RegionDir, usageFile),
			Options:     slices.Clone(usageOptions),
		})
	}
	return nil
}
