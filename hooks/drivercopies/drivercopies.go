// Package drivercopies finds copies of the driver's libraries in a container and mounts shadow libraries over them.
//
// It runs as root in the container's mount namespace, on files that the image's author chose and that others may change
// meanwhile, through a volume or the image's layers. So it names files by descriptor only, reads no more of them than it
// has to, and writes to none of them: whatever it creates is in a tmpfs of the container's own, /.tranche/c.
package drivercopies

import (
	"errors"

	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// Overmount mounts a shadow library over each driver copy that the program may load and that does not have
// one yet. It returns an error if the loader would search in a directory that cannot be known before the program runs.
func Overmount(program bundle.Program, libraries shadow.Libraries) (err error) {
	root, err := rootfs.Open(program.RootDir, program.Cwd)
	if err != nil {
		return err
	}
	defer root.Close()
	over, err := newOvermounter(root, libraries)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, over.close()) }()
	// Unshadowed driver copies will be there, by names that an image may know in advance.
	root.Refuse(shadow.CopiesDir)
	copies, err := find(root, program)
	if err != nil {
		return err
	}
	for _, library := range copies {
		if err := over.mount(library); err != nil {
			return err
		}
	}
	return nil
}
