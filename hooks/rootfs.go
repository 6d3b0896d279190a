package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tranche.dev/tranche/runtime"
	"tranche.dev/tranche/runtime/rootfs"
)

// maxSpecBytes bounds the size of a container's config.json. The largest that are seen in practice are some hundred KiB.
const maxSpecBytes = 16 << 20

// refuseForgedDir refuses a container whose image has something else than a directory where the regions are mounted.
//
// OCI runtimes follow links in the container's root file system when they mount. If an image brings our directory as a
// link, the mounts go to where it leads, and root in the container can put regions of its own making in its place. The
// hook runs before the runtime changes the root, and sees what the image has. That nothing is there is fine: the
// runtime makes a directory then.
func refuseForgedDir(state *specs.State) error {
	root, err := openRootfs(state.Bundle)
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

// lacks says what keeps programs of the container's image from finding the GPU. It is for people to know, so where it
// cannot be told, nothing is said.
func lacks(state *specs.State) string {
	_, dir, err := readBundle(state.Bundle)
	if err != nil {
		return ""
	}
	line, err := rootfs.LacksIn(dir)
	if err != nil {
		return ""
	}
	return line
}

// openRootfs opens the root file system of the container in a bundle.
func openRootfs(bundle string) (*os.Root, error) {
	_, dir, err := readBundle(bundle)
	if err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// readBundle reads the spec of the container in a bundle, and says where its root file system is.
func readBundle(bundle string) (*specs.Spec, string, error) {
	if !filepath.IsAbs(bundle) {
		return nil, "", fmt.Errorf("the container's state names no bundle (%q)", bundle)
	}
	spec, err := readSpec(filepath.Join(bundle, "config.json"))
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

func readSpec(path string) (*specs.Spec, error) {
	// Whoever may start containers may have left a FIFO here: don't wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file (%s)", path, info.Mode())
	}
	content, err := io.ReadAll(io.LimitReader(file, maxSpecBytes+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxSpecBytes {
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxSpecBytes>>20)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(content, spec); err != nil {
		return nil, fmt.Errorf("%s is no OCI spec: %w", path, err)
	}
	return spec, nil
}
