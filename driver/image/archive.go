package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/hashicorp/nomad/plugins/drivers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/internal/rootfile"
)

// importArchive reads an image from an archive in the task's directories.
//
// This is what the docker driver's option load does, without what that leaves behind. Of an archive for several
// platforms, the task's is taken.
//
// It leaves no image record: the lease in ctx holds the content until the container holds the snapshot, and afterwards
// containerd collects what no container needs. An image that came with one task goes with it.
func (s *Store) importArchive(ctx context.Context, r *Request, source imageSource) (_ containerd.Image, err error) {
	defer func() {
		if err != nil {
			s.dropImport(ctx)
		}
	}()
	file, err := openArchive(r.Task, source)
	if err != nil {
		return nil, importError(source, err)
	}
	defer file.Close()
	index, err := archive.ImportIndex(ctx, s.client.ContentStore(), file)
	if err != nil {
		if client.IsUnavailable(err) {
			return nil, s.client.Recoverable(err)
		}
		if client.IsDiskFull(err) {
			return nil, importError(source, err)
		}
		return nil, importError(source, fmt.Errorf("%w: %w", errNoArchive, err))
	}
	target, err := pickManifest(ctx, s.client.ContentStore(), index, source)
	if err != nil {
		return nil, importError(source, err)
	}
	found := containerd.NewImageWithPlatform(s.client.Client, images.Image{Name: source.given, Target: target},
		r.platform())
	if ok, err := complete(ctx, found); err != nil || !ok {
		return nil, importError(source, errors.Join(fmt.Errorf("the archive is incomplete, or holds no image for %s",
			r.platformName()), err))
	}
	return found, s.unpack(ctx, source, found)
}

// dropImport has containerd remove at once what a failed import has brought, which only the lease of the start holds: it
// may have filled the disk.
func (s *Store) dropImport(ctx context.Context) {
	id, _ := leases.FromContext(ctx)
	if err := s.dropLease(leases.Lease{ID: id}, false); err != nil {
		s.config.Logger.Warn("what a failed import brought stays until the lease expires", "lease", id, "error", err)
	}
}

// openArchive opens the archive beneath the task's directories. The task, or an artifact that it fetched, may have put
// a link there that leads to a file of the host's: the path is resolved inside the directory, so that it leads nowhere.
func openArchive(cfg *drivers.TaskConfig, source imageSource) (*os.File, error) {
	dirs := cfg.TaskDir()
	top, rest, _ := strings.Cut(source.archive, "/")
	host := map[string]string{"local": dirs.LocalDir, "alloc": dirs.SharedAllocDir, "secrets": dirs.SecretsDir}[top]
	file, err := rootfile.Open(host, rest)
	if err != nil {
		// The host's path in the message would tell the user nothing.
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, fmt.Errorf("open %s: %w; an artifact or template block can put it there", source.archive, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", source.archive)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// pickManifest returns the image in the archive's index that is meant.
func pickManifest(ctx context.Context, store content.Store, index ocispec.Descriptor, source imageSource,
) (ocispec.Descriptor, error) {
	data, err := content.ReadBlob(ctx, store, index)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("read the archive's index: %w", err)
	}
	var parsed ocispec.Index
	if err := json.Unmarshal(data, &parsed); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("read the archive's index: %w", err)
	}
	var names []string
	for _, manifest := range parsed.Manifests {
		for _, key := range []string{images.AnnotationImageName, ocispec.AnnotationRefName} {
			name := manifest.Annotations[key]
			if name == "" {
				continue
			}
			names = append(names, name)
			if source.name != "" && sameName(name, source.name) {
				return manifest, nil
			}
		}
	}
	if source.name != "" {
		return ocispec.Descriptor{}, fmt.Errorf("the archive holds no image named %q, only %q", source.name, names)
	}
	switch distinct(parsed.Manifests) {
	case 0:
		return ocispec.Descriptor{}, errNoArchive
	case 1:
		return parsed.Manifests[0], nil
	}
	if len(names) == 0 {
		// One image for several platforms has no names in its index: containerd picks by platform.
		return index, nil
	}
	return ocispec.Descriptor{}, fmt.Errorf("the archive holds several images; append the name of one, as in %q: %q",
		source.given+":"+names[0], names)
}

func distinct(manifests []ocispec.Descriptor) int {
	digests := map[string]bool{}
	for _, m := range manifests {
		digests[m.Digest.String()] = true
	}
	return len(digests)
}

// sameName compares image names, short or full.
func sameName(a, b string) bool {
	if a == b {
		return true
	}
	parsedA, errA := parseImage(a)
	parsedB, errB := parseImage(b)
	return errA == nil && errB == nil && parsedA.reference == parsedB.reference
}

// complete reports whether containerd holds all of the image's content for its platform.
func complete(ctx context.Context, i containerd.Image) (bool, error) {
	available, _, _, missing, err := images.Check(ctx, i.ContentStore(), i.Target(), i.Platform())
	return available && len(missing) == 0, err
}
