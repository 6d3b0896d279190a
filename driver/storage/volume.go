package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tranche-gpu/tranche/internal/filelock"
)

const (
	// AnonymousDir is the directory in a task's that holds its volumes without a name, each named by what AnonymousName
	// makes of its path in the container. They stay when the task is restarted and go with its directory.
	AnonymousDir = "image-volumes"
	// draftPrefix begins the names of volumes that are being made. No volume that a job names starts so.
	draftPrefix = ".new-"
)

// AnonymousName names the volume for a path in the container.
func AnonymousName(target string) string {
	sum := sha256.Sum256([]byte(target))
	return hex.EncodeToString(sum[:8])
}

// namedVolume returns the directory of a named volume. A new one is filled with what the image has at the target.
func (s *Storage) namedVolume(ctx context.Context, w wantedMount, tree *imageTree) (string, error) {
	dir, lock, err := openVolumeDir(s.config.VolumeDir)
	if err != nil {
		return "", fmt.Errorf("open the directory of the named volumes: %w", err)
	}
	defer dir.Close()
	defer lock.Close()
	// A second start waits, and finds the volume filled.
	unlock, err := s.volumes.Lock(ctx, w.source)
	if err != nil {
		return "", fmt.Errorf("make volume %q: %w", w.source, err)
	}
	defer unlock()
	if err := makeVolume(ctx, dir, w.source, w, tree); err != nil {
		return "", fmt.Errorf("make volume %q: %w", w.source, err)
	}
	return filepath.Join(s.config.VolumeDir, w.source), nil
}

// anonymousVolume returns the directory of a volume that belongs to the task.
func (m *mountSources) anonymousVolume(ctx context.Context, w wantedMount) (string, error) {
	cfg, name := m.request.Task, AnonymousName(w.target)
	task, err := os.OpenRoot(cfg.TaskDir().Dir)
	if err != nil {
		return "", err
	}
	defer task.Close()
	if err := task.MkdirAll(AnonymousDir, 0o700); err != nil {
		return "", err
	}
	dir, err := task.OpenRoot(AnonymousDir)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	if err := makeVolume(ctx, dir, name, w, m.tree); err != nil {
		return "", fmt.Errorf("make an anonymous volume: %w", err)
	}
	return m.pin(filepath.Join(cfg.Name, AnonymousDir, name), false)
}

// makeVolume makes a volume in dir, or leaves the one that is there. It is filled under another name and then
// renamed: a volume that is there is whole, whenever a plugin was killed.
func makeVolume(ctx context.Context, dir *os.Root, name string, w wantedMount, tree *imageTree) error {
	info, err := dir.Lstat(name)
	switch {
	case err == nil && !info.IsDir():
		return fmt.Errorf("%s is no directory", filepath.Join(dir.Name(), name))
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	draft := draftPrefix + name
	// An earlier plugin process may have left one half filled. No task has ever seen it.
	if err := dir.RemoveAll(draft); err != nil {
		return err
	}
	if err := dir.Mkdir(draft, 0o755); err != nil {
		return err
	}
	if err := fillVolume(ctx, dir, draft, w, tree); err != nil {
		return errors.Join(err, dir.RemoveAll(draft))
	}
	return dir.Rename(draft, name)
}

// fillVolume copies what the image has at the volume's target, unless the job does not want that, and gives the volume to the
// container's own IDs.
func fillVolume(ctx context.Context, dir *os.Root, draft string, w wantedMount, tree *imageTree) error {
	if !w.noCopy {
		if err := tree.copy(ctx, w.target, dir, draft); err != nil {
			return err
		}
	}
	volume, err := dir.Open(draft)
	if err != nil {
		return err
	}
	defer volume.Close()
	return tree.request.handOver(byDescriptor(volume))
}

// openVolumeDir opens the directory of the named volumes. Only root can go there: an image brings set-user-ID programs and
// device nodes, which no user of the host is to reach. The lock tells other plugin processes that volumes may be in
// the making.
func openVolumeDir(path string) (*os.Root, *os.File, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, nil, err
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	err = filelock.Shared(lock)
	var dir *os.Root
	if err == nil {
		dir, err = os.OpenRoot(path)
	}
	if err != nil {
		lock.Close()
		return nil, nil, err
	}
	return dir, lock, nil
}

// sweepVolumeDrafts removes volumes that a plugin was filling when it was killed. Where another one is just making some,
// they are left to it.
func sweepVolumeDrafts(path string) error {
	lock, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := filelock.TryExclusive(lock); err != nil {
		return nil //nolint:nilerr // Another plugin is at work there.
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := lock.ReadDir(-1)
	errs := []error{err}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), draftPrefix) {
			errs = append(errs, dir.RemoveAll(entry.Name()))
		}
	}
	return errors.Join(errs...)
}

// Check checks the policy.
func (p Policy) Check() error {
	switch p.SelinuxLabel {
	case "", relabelShared, relabelPrivate:
		return nil
	}
	return fmt.Errorf("plugin option volumes.selinuxlabel = %q: must be %q (all containers of the node may use a source) "+
		"or %q (one container)", p.SelinuxLabel, relabelShared, relabelPrivate)
}
