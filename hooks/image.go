package hooks

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// refuseForgedDir refuses a container whose image has anything but a directory at the path where the regions are mounted.
//
// OCI runtimes follow links in the container's root file system when they mount. If the path is a link in the image, the
// mounts are made at its target, and root in the container can replace the link by forged regions. The hook runs before the
// runtime changes the root, and sees the image's file. A missing path is fine: the runtime creates a directory.
func refuseForgedDir(state *specs.State, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("find %s in the root file system of container %s: %w", shadow.ContainerDir, state.ID, err)
	}
	defer root.Close()
	info, err := root.Lstat(shadow.ContainerDir[1:])
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("find %s in the root file system of container %s: %w", shadow.ContainerDir, state.ID, err)
	case !info.IsDir():
		return fmt.Errorf("the image of container %s has a file at %s that is no directory (%s); the path is reserved for "+
			"Tranche: remove it from the image", state.ID, shadow.ContainerDir, info.Mode())
	}
	return nil
}

// lacks describes what programs of the image in the root file system at dir lack to find the GPU. It is for people, so errors
// are ignored.
func lacks(dir string) string {
	line, err := rootfs.LacksIn(dir)
	if err != nil {
		return ""
	}
	return line
}
