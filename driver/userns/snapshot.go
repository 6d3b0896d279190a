package userns

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/naming"
)

// WithSnapshot makes the container's root filesystem. With IDs of its own its files are those IDs': a snapshotter that
// can shows them so, for others containerd's client makes a copy of the image, which the next container with the same
// IDs finds again as long as containerd keeps it.
func WithSnapshot(cfg *drivers.TaskConfig, containerID string, ids *Range, i *image.Image) containerd.NewContainerOpts {
	owned := snapshots.WithLabels(naming.Labels(cfg, i.Given))
	if ids == nil {
		return containerd.WithNewSnapshot(containerID, i, owned)
	}
	mappings := ids.Mappings()
	with := containerd.WithNewSnapshot(containerID, i, owned, containerd.WithUserNSRemapperLabels(mappings, mappings))
	return func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		if err := removeUnfinishedCopy(ctx, client.SnapshotService(c.Snapshotter), i, mappings); err != nil {
			return err
		}
		err := with(ctx, client, c)
		if errdefs.IsNotFound(err) {
			// The copy was found, and collected at that moment, since no container uses it any more.
			err = with(ctx, client, c)
		}
		if err != nil {
			return fmt.Errorf("give the files of image %q to the IDs %s: %w", i.Given, ids, err)
		}
		return nil
	}
}

// removeUnfinishedCopy removes the copy that a plugin left which died while making it: the client would take it for one
// that somebody else is just making. The IDs are this container's, so nobody is.
func removeUnfinishedCopy(
	ctx context.Context, snapshotter snapshots.Snapshotter, i containerd.Image, mappings []specs.LinuxIDMapping,
) error {
	layers, err := i.RootFS(ctx)
	if err != nil {
		return fmt.Errorf("list the layers of the image: %w", err)
	}
	name, err := UnfinishedCopy(identity.ChainID(layers).String(), mappings)
	if err == nil {
		err = snapshotter.Remove(ctx, name)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove an unfinished copy of the image: %w", err)
	}
	return nil
}

// UnfinishedCopy is how containerd's client calls the copy of an image's files while it makes it.
func UnfinishedCopy(parent string, mappings []specs.LinuxIDMapping) (string, error) {
	type idMap struct {
		UIDs []specs.LinuxIDMapping `json:"UidMap"`
		GIDs []specs.LinuxIDMapping `json:"GidMap"`
	}
	data, err := json.Marshal(struct {
		Parent string
		IDMap  idMap
	}{parent, idMap{mappings, mappings}})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]) + "-remap", nil
}
