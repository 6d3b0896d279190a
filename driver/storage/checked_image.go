package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"

	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// WithCheckedImage refuses a container whose image would have the OCI runtime make files on the host, or the start wait for
// good: see rootfs.RefuseLinkedDirs and RefuseUserFiles. No hook could, since it would come too late.
func (s *Storage) WithCheckedImage(image string) containerd.NewContainerOpts {
	return func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		mounts, err := client.SnapshotService(c.Snapshotter).Mounts(ctx, c.SnapshotKey)
		if err == nil {
			err = s.lookInto(readOnlyMounts(mounts), func(root string) error {
				return errors.Join(rootfs.RefuseLinkedDirs(root), rootfs.RefuseUserFiles(root))
			})
		}
		if err != nil {
			return fmt.Errorf("look into image %q: %w", image, err)
		}
		return nil
	}
}

// readOnlyMounts are those of a snapshot for looking at it. An overlay's upper directory must not be that of two mounts at
// once, and the one made here may end a moment after it was used: here it is one of the lower ones.
func readOnlyMounts(mounts []mount.Mount) []mount.Mount {
	mounts = slices.Clone(mounts)
	for i, m := range mounts {
		if m.Type != "overlay" {
			continue
		}
		upper, lower, options := "", "", []string{}
		for _, option := range m.Options {
			name, value, _ := strings.Cut(option, "=")
			switch name {
			case "upperdir":
				upper = value + ":"
			case "lowerdir":
				lower = value
			case "workdir", "uidmap", "gidmap":
			default:
				options = append(options, option)
			}
		}
		options = append(options, "lowerdir="+upper+lower)
		mounts[i].Options = options
	}
	return mounts
}
