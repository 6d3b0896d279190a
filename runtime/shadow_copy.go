package runtime

import (
	"bytes"
	"fmt"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// CopiesDir is where, in the container, the createContainer hook puts the copies of the driver that it has shadowed: each
// in a directory of its own, named by four digits.
const CopiesDir = ContainerDir + "/c"

// copiesOptions mount CopiesDir. Programs map the libraries in it executable. The hook lifts "ro" for as long as it works.
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
		Destination: CopiesDir, Type: "tmpfs", Source: "tmpfs", Options: append([]string(nil), copiesOptions...),
	})
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	hook := s.binding.hook("createContainer")
	hook.Args = append(hook.Args, "--shadow-dir", s.shadowDir)
	for _, node := range NodePaths(spec) { // those of the claims alone: see besideNVIDIA
		hook.Args = append(hook.Args, "--gpu-node", node)
	}
	spec.Hooks.CreateContainer = append(spec.Hooks.CreateContainer, hook)
	return nil
}

// ShadowSONAME is the SONAME of the shadow library that belongs over a file of that name, or "" where none does.
func ShadowSONAME(file string) string { return shadowSONAME(file) }

// CopyDir is the directory of the copy with that number.
func CopyDir(number int) string { return fmt.Sprintf("%s/%04d", CopiesDir, number) }

// ShadowOfCopy makes the shadow library for the copy of the driver with that number out of the one that seeks the
// driver beside itself. It names the copy by an absolute path instead, so that nothing has to be put beside the copy:
// its directory may be read-only, or a volume that is not the container's alone, and links lead to it from others.
//
// The two names are equally long, so that one replaces the other where it stands in the file.
func ShadowOfCopy(shadow []byte, soname string, number int) ([]byte, error) {
	beside := []byte("$ORIGIN/" + BehindShadow(soname) + "\x00")
	absolute := []byte(filepath.Join(CopyDir(number), filepath.Base(BehindShadow(soname))) + "\x00")
	if bytes.Count(shadow, beside) != 1 || len(beside) != len(absolute) {
		return nil, fmt.Errorf("make the shadow of copy %d: the shadow library does not name %q once, as those of this "+
			"version of Tranche do; install the shadow libraries and tranche-hook of one version", number, beside)
	}
	return bytes.Replace(shadow, beside, absolute, 1), nil
}
