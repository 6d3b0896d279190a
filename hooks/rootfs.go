package hooks

import (
	"errors"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// refuseForgedDir refuses a container whose image has something else than a directory where the regions are mounted.
//
// OCI runtimes follow links in the container's root file system when they mount. If an image brings our directory as a
// link, the mounts go to where it leads, and root in the container can put regions of its own making in its place. The
// hook runs before the runtime changes the root, and sees what the image has. That nothing is there is fine: the
// runtime makes a directory then.
func refuseForgedDir(state *specs.State, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("look for %s in the root file system of container %s: %w", shadow.ContainerDir, state.ID, err)
	}
	defer root.Close()
	info, err := root.Lstat(shadow.ContainerDir[1:])
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for %s in the root file system of container %s: %w", shadow.ContainerDir, state.ID, err)
	case !info.IsDir():
		return fmt.Errorf("the image of container %s has something at %s that is no directory (%s), where only Tranche "+
			"may mount; remove it from the image", state.ID, shadow.ContainerDir, info.Mode())
	}
	return nil
}

// lacks says what keeps programs of the image in the root file system at dir from finding the GPU. It is for people to
// know, so where it cannot be told, nothing is said.
func lacks(dir string) string {
	line, err := rootfs.LacksIn(dir)
	if err != nil {
		return ""
	}
	return line
}
