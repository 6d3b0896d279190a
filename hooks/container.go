package hooks

import (
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// createContainer refuses a container that has other GPUs than its own, and puts the shadow over every copy of the driver
// that a program in the container may find and that the spec does not know of, unless the container has no limit. Where the
// loader would search in a place that cannot be known before the program runs, the container is refused, too.
//
// It runs in the container's mount namespace, when all its mounts are made and the other hooks have run, before the root is
// changed: so it sees the container's files as its processes will, and the host's /proc and our shadow libraries still
// under their own paths.
//
// It runs as root on files that the image's author chose, and that others may change meanwhile, through a volume or the
// image's layers. So it names files by descriptor only, reads no more of them than it has to, and writes to none of
// them: all that it makes lies in a file system of the container's own.
func createContainer(opts options, state *specs.State) error {
	program, err := bundle.ReadProgram(state.Bundle)
	if err != nil {
		return fmt.Errorf("look for copies of the driver in container %s: %w", state.ID, err)
	}
	if err := refuseOthersIn(program.RootDir, opts.gpuNodes); err != nil {
		return fmt.Errorf("check the GPUs of container %s: %w", state.ID, err)
	}
	if opts.unlimited {
		return nil
	}
	if err := shadowCopies(program, opts.shadowDir); err != nil {
		return fmt.Errorf("shadow the copies of the driver in container %s: %w", state.ID, err)
	}
	return nil
}

// shadowCopies shadows the copies of the driver that a program may find in its root file system.
func shadowCopies(program bundle.Program, shadowDir string) (err error) {
	root, err := rootfs.Open(program.RootDir, program.Cwd)
	if err != nil {
		return err
	}
	defer root.Close()
	covers, err := newCovers(root, shadowDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, covers.close()) }()
	// The copies themselves will lie there, without a shadow, by names that an image may know in advance.
	root.Refuse(shadow.CopiesDir)
	libraries, err := findDrivers(root, program)
	if err != nil {
		return err
	}
	for _, library := range libraries {
		if err := covers.cover(library); err != nil {
			return err
		}
	}
	return nil
}
