package edit

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/ocispec"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// usageFile is the file of a region that the container's processes write; see package region.
const usageFile = "usage"

var (
	// anchorOptions mount shadow.ContainerDir itself. As a mount it cannot be renamed or removed from inside, and since it is
	// read-only no process in the container can add a forged region.
	anchorOptions = []string{"ro", "nosuid", "nodev", "noexec", "mode=0755", "size=64k"}
	regionOptions = []string{"ro", "nosuid", "nodev", "noexec", "bind"}
	usageOptions  = []string{"rw", "nosuid", "nodev", "noexec", "bind"}
)

// RegionMounts mounts the regions of the claims: the directory read-only, since only the host may write the limit, and in it
// the usage file, which the container's processes write. The mounts are appended, so that no mount of the job hides them.
type RegionMounts struct {
	Claims []Claim
}

// Modify appends the mounts, or refuses a spec that already has mounts there.
func (r RegionMounts) Modify(spec *specs.Spec) error {
	for _, mount := range spec.Mounts {
		at := ocispec.ContainerPath(mount.Destination)
		if at == shadow.ContainerDir || strings.HasPrefix(at, shadow.ContainerDir+"/") {
			return fmt.Errorf("mount the regions at %s: the container already mounts %q at %s, which is "+
				"reserved for Tranche; mount it somewhere else", shadow.ContainerDir, mount.Source, mount.Destination)
		}
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: shadow.ContainerDir,
		Type:        "tmpfs",
		Source:      "tmpfs",
		Options:     slices.Clone(anchorOptions),
	})
	for _, c := range r.Claims {
		at := path.Join(shadow.ContainerDir, "claims", c.ID)
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: at,
			Type:        "bind",
			Source:      c.RegionDir,
			Options:     slices.Clone(regionOptions),
		}, specs.Mount{
			Destination: path.Join(at, usageFile),
			Type:        "bind",
			Source:      filepath.Join(c.RegionDir, usageFile),
			Options:     slices.Clone(usageOptions),
		})
	}
	return nil
}
