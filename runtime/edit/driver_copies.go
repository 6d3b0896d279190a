package edit

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// copiesOptions mount shadow.CopiesDir. Programs map the libraries in it executable. The hook makes it writable while it runs.
var copiesOptions = []string{"ro", "nosuid", "nodev", "mode=0755", "size=128m"}

// driverCopies has tranche-hook shadow the driver copies that are not in the spec: those in the image and in the job's
// volumes, and those that the hooks of others mount.
type driverCopies struct {
	binding   BindingHooks
	libraries shadow.Libraries
}

// Modify appends the mount for the copies and the hook. The hook is the last of its kind, so that it sees what the others
// did. The OCI runtime makes the mount, since it knows the SELinux label for files in it.
func (s driverCopies) Modify(spec *specs.Spec) error {
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: shadow.CopiesDir, Type: "tmpfs", Source: "tmpfs", Options: append([]string(nil), copiesOptions...),
	})
	args := []string{"--shadow-dir", s.libraries.Dir}
	switch {
	case s.libraries.ComputeOnly:
		args = append(args, "--compute-only")
	case s.libraries.Governed:
		args = append(args, "--governed")
	}
	s.binding.appendCreateContainer(spec, args...)
	return nil
}
