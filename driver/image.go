package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	nstructs "github.com/hashicorp/nomad/nomad/structs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// What the option image may start with to name an archive: PREFIX:PATH, or PREFIX:PATH:NAME for one of several images in
// it. An archive is what `docker save`, `podman save` or `skopeo copy` writes, and what the docker driver's option load
// takes; an artifact or template block, or another task, puts it into the task's directories. Both kinds are told apart
// by their content; there are two names because that is what users of other tools write.
var archivePrefixes = []string{"oci-archive:", "docker-archive:"}

// imageSource is the option image, taken apart: a reference, or an archive in the task's directories.
type imageSource struct {
	// given is the option as it stands in the jobspec, for messages.
	given string
	// reference is the image's full name, registry and tag included; empty for an archive.
	reference string
	// archive is the path of the archive, in one of the task's directories; name picks one of several images in it.
	archive string
	name    string
}

// parseImage takes the option image apart.
func parseImage(image string) (imageSource, error) {
	for _, prefix := range archivePrefixes {
		if rest, ok := strings.CutPrefix(image, prefix); ok {
			return parseArchive(image, rest)
		}
	}
	// A jobspec for the docker driver may have the scheme before the name.
	named, err := reference.ParseDockerRef(strings.TrimPrefix(image, "https://"))
	if err != nil {
		return imageSource{}, fmt.Errorf("option image = %q: %w; it may be a reference such as \"busybox:1.36\" or "+
			"\"ghcr.io/org/name@sha256:…\", or an archive such as \"oci-archive:local/image.tar\"", image, err)
	}
	return imageSource{given: image, reference: named.String()}, nil
}

// parseArchive takes PATH or PATH:NAME apart.
func parseArchive(given, rest string) (imageSource, error) {
	file, name, _ := strings.Cut(rest, ":")
	file = strings.TrimPrefix(path.Clean("/"+file), "/")
	top, _, below := strings.Cut(file, "/")
	if !below || (top != "local" && top != "alloc" && top != "secrets") {
		return imageSource{}, fmt.Errorf("option image = %q: the archive must lie in one of the task's directories: "+
			"local/, alloc/ or secrets/", given)
	}
	return imageSource{given: given, archive: file, name: name}, nil
}

// registry is the name of the registry that the image is in.
func (i imageSource) registry() string {
	name, _, _ := strings.Cut(i.reference, "/")
	return name
}

// latest says whether the image's tag is the one that means whatever is newest.
func (i imageSource) latest() bool { return strings.HasSuffix(i.reference, ":latest") }

// image is an image that is ready to run: its layers are unpacked in the snapshotter.
type image struct {
	containerd.Image
	source imageSource
	config ocispec.ImageConfig
}

// ensureImage makes the task's image ready. ctx holds the lease that keeps it until the container does, whatever becomes
// of the image's record.
func (d *Driver) ensureImage(ctx context.Context, s *startup) (*image, error) {
	source, err := parseImage(s.options.Image)
	if err != nil {
		return nil, err
	}
	var found containerd.Image
	if source.archive != "" {
		found, err = d.importArchive(ctx, s, source)
	} else {
		found, err = d.fetchKept(ctx, s, source)
	}
	if err != nil {
		// Without its snapshotter containerd fails in words that do not help.
		if missing := d.client.CheckSnapshotter(ctx); missing != nil {
			return nil, missing
		}
		return nil, err
	}
	parsed, err := imageConfig(ctx, found)
	if err != nil {
		return nil, d.client.Recoverable(fmt.Errorf("read the configuration of image %q: %w", source.given, err))
	}
	if err := d.judgePlatform(s, source, parsed.Platform); err != nil {
		return nil, err
	}
	return &image{Image: found, source: source, config: parsed.Config}, nil
}

// fetchTries is how often an image is fetched that somebody removes before the start's lease keeps it.
const fetchTries = 3

// fetchKept fetches the image and adds it to the lease in ctx, which is only then sure to keep it.
func (d *Driver) fetchKept(ctx context.Context, s *startup, source imageSource) (containerd.Image, error) {
	for try := 1; ; try++ {
		found, err := d.fetch(ctx, s, source)
		if err != nil {
			return nil, err
		}
		kept, err := d.keepImage(ctx, found)
		switch {
		case err != nil:
			return nil, d.client.Recoverable(fmt.Errorf("keep image %q while the task starts: %w", source.given, err))
		case kept:
			return found, nil
		case try == fetchTries:
			return nil, nstructs.NewRecoverableError(fmt.Errorf("image %q was removed from containerd %d times before "+
				"the task could use it; stop what removes images from containerd's namespace %q", source.given, try,
				d.config.Namespace), true)
		}
	}
}

// keepImage adds the image to the lease in ctx, and reports whether all of it was still there then.
func (d *Driver) keepImage(ctx context.Context, i containerd.Image) (kept bool, err error) {
	id, _ := leases.FromContext(ctx)
	err = d.client.LeasesService().AddResource(ctx, leases.Lease{ID: id},
		leases.Resource{ID: i.Target().Digest.String(), Type: "content"})
	if err != nil {
		return false, err
	}
	kept, err = i.IsUnpacked(ctx, d.config.Snapshotter)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return kept, err
}

// unpack makes snapshots of the image's layers, once however many tasks wait for it.
func (d *Driver) unpack(ctx context.Context, source imageSource, i containerd.Image) error {
	unlock, err := d.images.unpacking.Lock(ctx, i.Target().Digest.String())
	if err != nil {
		return fmt.Errorf("unpack image %q: %w", source.given, err)
	}
	defer unlock()
	unpacked, err := i.IsUnpacked(ctx, d.config.Snapshotter)
	if err == nil && !unpacked {
		err = i.Unpack(ctx, d.config.Snapshotter)
	}
	if err != nil {
		return d.client.Recoverable(noSpace(fmt.Errorf("unpack image %q: %w", source.given, err)))
	}
	return nil
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

// findImage looks the image up in containerd, by its full name and as the jobspec writes it: who imported it by hand
// may have kept the short name. It says whether the image is unpacked already. One of which something is missing is not
// found.
func (d *Driver) findImage(ctx context.Context, source imageSource, platform platforms.MatchComparer,
) (found containerd.Image, unpacked bool, err error) {
	record, err := d.client.ImageService().Get(ctx, source.reference)
	if errdefs.IsNotFound(err) {
		record, err = d.client.ImageService().Get(ctx, source.given)
	}
	if err != nil {
		return nil, false, err
	}
	found = containerd.NewImageWithPlatform(d.client.Client, record, platform)
	// What has been unpacked can run. Of an image that a lazy snapshotter serves, that may be all there ever is.
	unpacked, err = found.IsUnpacked(ctx, d.config.Snapshotter)
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

// checkImage checks the options about the image.
func (c *TaskConfig) checkImage(*Config) error {
	if c.Image == "" {
		return errors.New("option image must not be empty: name an image, such as \"docker.io/library/busybox:1.36\"")
	}
	_, err := parseImage(c.Image)
	errs := []error{err, c.checkPlatform(), c.Auth.check()}
	if c.ImagePullTimeout != "" {
		errs = append(errs, checkDuration("option image_pull_timeout", c.ImagePullTimeout))
	}
	return errors.Join(errs...)
}

// checkImages checks the plugin's options about images.
func (c *Config) checkImages() error {
	var errs []error
	if c.PullActivityTimeout != "" {
		errs = append(errs, checkDuration("plugin option pull_activity_timeout", c.PullActivityTimeout))
	}
	if c.GC.Image {
		errs = append(errs, checkDuration("plugin option gc.image_delay", c.GC.ImageDelay))
	}
	if helper := c.Auth.Helper; helper != "" && !helperName.MatchString(helper) {
		errs = append(errs, fmt.Errorf("plugin option auth.helper = %q: must be the end of a program's name, such as "+
			"\"ecr-login\" for docker-credential-ecr-login", helper))
	}
	return errors.Join(errs...)
}

// pullTimeout is how long the pull of this task's image may take. Both values have been validated.
func (c *TaskConfig) pullTimeout(plugin *Config) time.Duration {
	return firstDuration(c.ImagePullTimeout, plugin.ImagePullTimeout, defaultPullTimeout)
}

// pullActivityTimeout is how long a pull may make no progress.
func (c *Config) pullActivityTimeout() time.Duration {
	return firstDuration(c.PullActivityTimeout, defaultPullActivityTimeout)
}

// firstDuration is the first of the values that is a length of time.
func firstDuration(values ...string) time.Duration {
	for _, value := range values {
		if d, err := time.ParseDuration(value); err == nil {
			return d
		}
	}
	return 0
}
