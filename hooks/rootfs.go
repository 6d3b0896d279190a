package hooks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"tranche.dev/tranche/runtime"
	"tranche.dev/tranche/runtime/rootfs"
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
		return fmt.Errorf("look for %s in the root file system of container %s: %w", runtime.ContainerDir, state.ID, err)
	}
	defer root.Close()
	info, err := root.Lstat(runtime.ContainerDir[1:])
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for %s in the root file system of container %s: %w", runtime.ContainerDir, state.ID, err)
	case !info.IsDir():
		return fmt.Errorf("the image of container %s has something at %s that is no directory (%s), where only Tranche "+
			"may mount; remove it from the image", state.ID, runtime.ContainerDir, info.Mode())
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

// readBundle reads the spec of the container in a bundle, and says where its root file system is.
func readBundle(bundle string) (*specs.Spec, string, error) {
	if !filepath.IsAbs(bundle) {
		return nil, "", fmt.Errorf("the container's state names no bundle (%q)", bundle)
	}
	spec, err := runtime.ReadSpec(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, "", err
	}
	if spec.Root == nil || spec.Root.Path == "" {
		return nil, "", fmt.Errorf("the container's spec in %s names no root file system", bundle)
	}
	path := spec.Root.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(bundle, path)
	}
	return spec, path, nil
}
