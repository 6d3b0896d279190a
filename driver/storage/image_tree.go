package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/internal/thread"
)

// imageTree reads the files of the task's image before there is a container, by a read-only snapshot of it.
type imageTree struct {
	storage *Storage
	request *Request
	mounts  []mount.Mount // nil until needed
}

func (t *imageTree) key() string { return t.request.ContainerID + "-view" }

// view makes the snapshot. The lease in ctx has containerd remove it if this process is killed.
func (t *imageTree) view(ctx context.Context) error {
	if t.mounts != nil {
		return nil
	}
	layers, err := t.request.Image.RootFS(ctx)
	if err != nil {
		return fmt.Errorf("read the layers of image %q: %w", t.request.Image.Given, err)
	}
	snapshotter := t.storage.client.SnapshotService(t.storage.client.Snapshotter)
	parent, owner := identity.ChainID(layers).String(), snapshots.WithLabels(naming.Labels(t.request.Task, t.request.Image.Given))
	mounts, err := snapshotter.View(ctx, t.key(), parent, owner)
	if errdefs.IsAlreadyExists(err) {
		// An earlier plugin process was killed while it read.
		if err = snapshotter.Remove(ctx, t.key()); err == nil || errdefs.IsNotFound(err) {
			mounts, err = snapshotter.View(ctx, t.key(), parent, owner)
		}
	}
	if err != nil {
		return fmt.Errorf("look into image %q: make a snapshot: %w", t.request.Image.Given, err)
	}
	t.mounts = mounts
	return nil
}

// close removes the snapshot.
func (t *imageTree) close(ctx context.Context) error {
	if t.mounts == nil {
		return nil
	}
	// That the start was cancelled is not a reason to leave it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), client.CallTimeout)
	defer cancel()
	err := t.storage.client.SnapshotService(t.storage.client.Snapshotter).Remove(ctx, t.key())
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove the snapshot by which image %q was read: %w", t.request.Image.Given, err)
	}
	return nil
}

// copy copies what the image has at a path into a directory that is empty, with owners, modes and times. Where the image
// has nothing the directory stays as it is.
func (t *imageTree) copy(ctx context.Context, from string, to *os.Root, name string) error {
	if err := t.view(ctx); err != nil {
		return err
	}
	target, err := to.Open(name)
	if err != nil {
		return err
	}
	defer target.Close()
	err = t.storage.lookInto(t.mounts, func(root string) error { return copyFromRoot(root, from, target) })
	if err != nil {
		return fmt.Errorf("look into image %q: %w", t.request.Image.Given, err)
	}
	return nil
}

// lookInto calls f on a thread that has a snapshot mounted, at root, and on no other. f must not start goroutines that
// rely on it.
func (s *Storage) lookInto(mounts []mount.Mount, f func(root string) error) error {
	place, err := filepath.Abs(s.config.RunDir)
	if err == nil {
		err = os.MkdirAll(place, 0o755)
	}
	if err != nil {
		return err
	}
	return thread.RunWithMounts(func() error {
		if err := mountHere(mounts, place); err != nil {
			return err
		}
		return f(place)
	})
}

// copyFromRoot copies a directory in a root to another directory. The path is resolved inside the root: a link of the
// image's must not lead to the host's files. Below it links are copied and not followed, and nobody else can change
// anything on either side.
func copyFromRoot(root, from string, to *os.File) error {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	source, err := pathrs.OpenatInRoot(dir, from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s in the image: %w", from, err)
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("the image has a file at %s, where a volume is to be mounted; mount a file there, or at another path",
			from)
	}
	err = continuity.CopyDir(byDescriptor(to), byDescriptor(source),
		continuity.WithXAttrExclude("security.selinux", "trusted.overlay.opaque", "user.overlay.opaque"),
		continuity.WithAllowXAttrErrors())
	if err != nil {
		return fmt.Errorf("copy %s of the image: %w", from, err)
	}
	return nil
}

// byDescriptor is a path that leads to an open directory, wherever it lies.
func byDescriptor(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/.", dir.Fd()) }

// mountHere mounts a snapshot on the calling thread, and nowhere else.
func mountHere(mounts []mount.Mount, at string) error {
	for _, m := range mounts {
		if err := shortenLayers(&m); err != nil {
			return err
		}
		if err := m.Mount(at); err != nil {
			return fmt.Errorf("mount its snapshot: %w", err)
		}
	}
	return nil
}

// shortenLayers names the layers of an overlay relative to the directory in which all of them lie, and makes that the
// thread's working directory. The kernel takes one page of options, too little for the full names of some fifty layers; and
// containerd, which knows that too, would mount on another thread then, with other mounts.
func shortenLayers(m *mount.Mount) error {
	for i, option := range m.Options {
		list, ok := strings.CutPrefix(option, "lowerdir=")
		if !ok || m.Type != "overlay" {
			continue
		}
		layers := strings.Split(list, ":")
		// Layers are called …/snapshots/NUMBER/fs.
		common := filepath.Dir(filepath.Dir(layers[0]))
		for j, layer := range layers {
			rel, inside := strings.CutPrefix(layer, common+"/")
			if !inside {
				return nil
			}
			layers[j] = rel
		}
		m.Options = append([]string{}, m.Options...)
		m.Options[i] = "lowerdir=" + strings.Join(layers, ":")
		if err := unix.Chdir(common); err != nil {
			return fmt.Errorf("go to the layers: %w", err)
		}
	}
	return nil
}
