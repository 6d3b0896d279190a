// Package image provides the images of tasks: from a registry, from an archive in the task's directories, or from
// what containerd has already. It also removes images that no task uses. It must not depend on containers.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/internal/keylock"
)

// Config is what a Store needs.
type Config struct {
	Client *client.Client
	Logger hclog.Logger
	// Notify emits a task event.
	Notify func(cfg *drivers.TaskConfig, annotations map[string]string, format string, args ...any)
	// RegistryHostsDir has a directory per registry with a hosts.toml; empty for none.
	RegistryHostsDir string
	// Credentials are for tasks without an auth block.
	Credentials CredentialSources
	// PullActivityTimeout ends a pull that makes no progress for so long.
	PullActivityTimeout time.Duration
	// Collect removes images that no task has used for CollectDelay.
	Collect      bool
	CollectDelay time.Duration
}

// Store obtains images, and keeps track of who uses them.
type Store struct {
	// Pace is for tests; set it before the first image is obtained.
	Pace Pace

	config    Config
	client    *client.Client
	pulls     pulls
	unpacking keylock.Locks
	collector *collector // nil if images are not collected
	tending   sync.Once
}

// NewStore returns a store. It removes nothing before Tend.
func NewStore(config Config) *Store {
	s := &Store{config: config, client: config.Client}
	if config.Collect {
		s.collector = newCollector(s, config.CollectDelay)
	}
	return s
}

// Request is a request for the image of a task.
type Request struct {
	Options
	Task *drivers.TaskConfig
}

// Image is an image that is ready to run: its layers are unpacked in the snapshotter.
type Image struct {
	containerd.Image
	// Given is the option image as it is in the jobspec, for messages.
	Given string
	// Process is what the image says about its process.
	Process ocispec.ImageConfig
}

// Ensure makes the task's image ready. ctx has the lease that keeps it until the container does, whatever happens to the
// image's record.
func (s *Store) Ensure(ctx context.Context, r *Request) (*Image, error) {
	source, err := parseImage(r.Image)
	if err != nil {
		return nil, err
	}
	var found containerd.Image
	if source.archive != "" {
		found, err = s.importArchive(ctx, r, source)
	} else {
		found, err = s.fetchKept(ctx, r, source)
	}
	if err != nil {
		// The errors of a containerd without the snapshotter do not say what is wrong.
		if missing := s.client.CheckSnapshotter(ctx); missing != nil {
			return nil, missing
		}
		return nil, err
	}
	parsed, err := imageConfig(ctx, found)
	if err != nil {
		return nil, s.client.Recoverable(fmt.Errorf("read the configuration of image %q: %w", source.given, err))
	}
	if len(parsed.RootFS.DiffIDs) == 0 {
		return nil, errNoLayers(source)
	}
	if err := s.checkPlatform(r, source, parsed.Platform); err != nil {
		return nil, err
	}
	return &Image{Image: found, Given: source.given, Process: parsed.Config}, nil
}

// NoteUse notes that a task uses the image now.
func (s *Store) NoteUse(image string) {
	if s.collector != nil {
		s.collector.noteUse(image, time.Now())
	}
}

// NoteEnd notes that a task that used the image is gone.
func (s *Store) NoteEnd(image string) {
	if s.collector == nil {
		return
	}
	s.collector.noteUse(image, time.Now())
	select {
	case s.collector.wake <- struct{}{}:
	default: // It will wake already.
	}
}

// RemoveUnused removes an image that has been unused since a moment, and returns how long to wait if it is in use or not
// yet due. Images have to be collected.
func (s *Store) RemoveUnused(ctx context.Context, record images.Image, since time.Time) (time.Duration, error) {
	return s.collector.remove(ctx, record, since)
}

// Tend starts to remove what dead plugin processes began to pull, and then images that no task uses. It may be called
// more than once.
func (s *Store) Tend() { s.tending.Do(func() { s.client.Go(s.tend) }) }

func (s *Store) tend() {
	for err := s.dropDeadPulls(); err != nil; err = s.dropDeadPulls() {
		s.config.Logger.Debug("cannot remove partial pulls of dead plugin processes yet; trying again", "error", err)
		if !s.client.Pause(collectorRetry) {
			return
		}
	}
	if s.collector != nil {
		s.collector.run()
	}
}

// fetchTries is how often an image is fetched that is removed from outside before the start's lease keeps it.
const fetchTries = 3

// fetchKept fetches the image and adds it to the lease in ctx, which is only then sure to keep it.
func (s *Store) fetchKept(ctx context.Context, r *Request, source imageSource) (containerd.Image, error) {
	for try := 1; ; try++ {
		found, err := s.fetch(ctx, r, source)
		if err != nil {
			return nil, err
		}
		kept, err := s.keep(ctx, found)
		switch {
		case err != nil:
			return nil, s.client.Recoverable(fmt.Errorf("keep image %q while the task starts: %w", source.given, err))
		case kept:
			return found, nil
		}
		if parsed, err := imageConfig(ctx, found); err == nil && len(parsed.RootFS.DiffIDs) == 0 {
			return nil, errNoLayers(source)
		}
		if try == fetchTries {
			return nil, recoverable.Error(fmt.Errorf("image %q was removed from containerd %d times before "+
				"the task could use it; stop what removes images from containerd's namespace %q", source.given, try,
				s.client.Namespace))
		}
	}
}

// keep adds the image to the lease in ctx, and reports whether all of it was still there.
func (s *Store) keep(ctx context.Context, i containerd.Image) (kept bool, err error) {
	id, _ := leases.FromContext(ctx)
	err = s.client.LeasesService().AddResource(ctx, leases.Lease{ID: id},
		leases.Resource{ID: i.Target().Digest.String(), Type: "content"})
	if err != nil {
		return false, err
	}
	kept, err = i.IsUnpacked(ctx, s.client.Snapshotter)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return kept, err
}

// unpack makes snapshots of the image's layers, once however many tasks wait for it.
func (s *Store) unpack(ctx context.Context, source imageSource, i containerd.Image) error {
	unlock, err := s.unpacking.Lock(ctx, i.Target().Digest.String())
	if err != nil {
		return fmt.Errorf("unpack image %q: %w", source.given, err)
	}
	defer unlock()
	unpacked, err := i.IsUnpacked(ctx, s.client.Snapshotter)
	if err == nil && !unpacked {
		err = i.Unpack(ctx, s.client.Snapshotter)
	}
	if err != nil {
		return s.client.Recoverable(noSpace(fmt.Errorf("unpack image %q: %w", source.given, err)))
	}
	return nil
}

// errNoLayers is the error of what is stored like an image and is none, such as a chart or a model.
func errNoLayers(source imageSource) error {
	return fmt.Errorf("image %q has no layers: it is an artifact, and no image of a container", source.given)
}

// imageConfig reads what the image says about its process and its platform.
func imageConfig(ctx context.Context, i containerd.Image) (ocispec.Image, error) {
	var parsed ocispec.Image
	desc, err := i.Config(ctx)
	if err != nil {
		return parsed, err
	}
	data, err := content.ReadBlob(ctx, i.ContentStore(), desc)
	if err != nil {
		return parsed, err
	}
	return parsed, json.Unmarshal(data, &parsed)
}

// find looks the image up in containerd, by its full name and as the jobspec writes it: an image imported by hand may have
// the short name. It reports whether the image is unpacked already. An image with missing content is not found.
func (s *Store) find(ctx context.Context, source imageSource, platform platforms.MatchComparer,
) (found containerd.Image, unpacked bool, err error) {
	record, err := s.client.ImageService().Get(ctx, source.reference)
	if errdefs.IsNotFound(err) {
		record, err = s.client.ImageService().Get(ctx, source.given)
	}
	if err != nil {
		return nil, false, err
	}
	found = containerd.NewImageWithPlatform(s.client.Client, record, platform)
	// What has been unpacked can run. Of an image that a lazy snapshotter serves, that may be all there ever is.
	unpacked, err = found.IsUnpacked(ctx, s.client.Snapshotter)
	if err == nil && unpacked {
		return found, true, nil
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, false, err
	}
	// An image whose content is incomplete (another platform's, or a pull that was cut off) has to be pulled.
	ok, err := complete(ctx, found)
	if err == nil && !ok {
		err = fmt.Errorf("image %s: its content: %w", source.reference, errdefs.ErrNotFound)
	}
	return found, false, err
}

// importError says why an archive is of no use.
func importError(source imageSource, err error) error {
	return noSpace(fmt.Errorf("option image = %q: %w", source.given, err))
}

var errNoArchive = errors.New("the file is no OCI or Docker image archive; write one with `docker save`, " +
	"`podman save --format oci-archive` or `skopeo copy … oci-archive:FILE`")
