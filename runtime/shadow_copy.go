package runtime

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// copiesOptions mount shadow.CopiesDir. Programs map the libraries in it executable. The hook lifts "ro" for as long as it works.
var copiesOptions = []string{"ro", "nosuid", "nodev", "mode=0755", "size=128m"}

// shadowedCopies has tranche-hook shadow the copies of the driver that the spec does not know of: those in the image
// and in the job's volumes, and those that the hooks of others mount.
type shadowedCopies struct {
	binding   bindingHooks
	shadowDir string
}

// Modify appends the mount for the copies and the hook. The hook is the last of its kind, so that it sees what the
// others did. The mount is the runtime's to make: it knows which label the files in it need under SELinux.
func (s shadowedCopies) Modify(spec *specs.Spec) error {
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: shadow.CopiesDir, Type: "tmpfs", Source: "tmpfs", Options: append([]string(nil), copiesOptions...),
	})
	s.binding.appendCreateContainer(spec, "--shadow-dir", s.shadowDir)
	return nil
}
