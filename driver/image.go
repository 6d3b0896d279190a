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
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// What the option image may start with to name an archive. Both kinds are told apart by their content; there are two
// names because that is what users of other tools write.
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
	named, err := reference.ParseDockerRef(image)
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

// image is an image that is ready to run: its layers are unpacked in the snapshotter.
type image struct {
	containerd.Image
	source imageSource
	config ocispec.ImageConfig
}

// ensureImage makes the task's image ready. ctx holds the lease that keeps what it fetches until the container does.
func (d *Driver) ensureImage(ctx context.Context, s *startup) (*image, error) {
	source, err := parseImage(s.options.Image)
	if err != nil {
		return nil, err
	}
	var found containerd.Image
	if source.archive != "" {
		found, err = d.importArchive(ctx, s, source)
	} else {
		found, err = d.findOrPull(ctx, s, source)
	}
	if err != nil {
		return nil, err
	}
	unlock := d.pulls.lock("unpack " + found.Target().Digest.String())
	defer unlock()
	if err := d.unpack(ctx, found); err != nil {
		return nil, fmt.Errorf("unpack image %q: %w", source.given, err)
	}
	config, err := imageConfig(ctx, found)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of image %q: %w", source.given, err)
	}
	return &image{Image: found, source: source, config: config}, nil
}

func (d *Driver) unpack(ctx context.Context, i containerd.Image) error {
	unpacked, err := i.IsUnpacked(ctx, d.config.Snapshotter)
	if err != nil || unpacked {
		return err
	}
	return i.Unpack(ctx, d.config.Snapshotter)
}

// imageConfig reads what the image says about its process.
func imageConfig(ctx context.Context, i containerd.Image) (ocispec.ImageConfig, error) {
	desc, err := i.Config(ctx)
	if err != nil {
		return ocispec.ImageConfig{}, err
	}
	data, err := content.ReadBlob(ctx, i.ContentStore(), desc)
	if err != nil {
		return ocispec.ImageConfig{}, err
	}
	var parsed ocispec.Image
	if err := json.Unmarshal(data, &parsed); err != nil {
		return ocispec.ImageConfig{}, err
	}
	return parsed.Config, nil
}

// findOrPull returns the image that a reference names: from containerd where it has it, else from the registry.
func (d *Driver) findOrPull(ctx context.Context, s *startup, source imageSource) (containerd.Image, error) {
	// One pull at a time for an image: whoever comes second finds what the first has fetched.
	unlock := d.pulls.lock(source.reference)
	defer unlock()
	if s.options.ForcePull {
		return d.pull(ctx, s, source)
	}
	found, err := d.findImage(ctx, source)
	if errdefs.IsNotFound(err) {
		return d.pull(ctx, s, source)
	}
	return found, err
}

// findImage looks the image up in containerd, by its full name and as the jobspec writes it: who imported it by hand
// may have kept the short name.
func (d *Driver) findImage(ctx context.Context, source imageSource) (containerd.Image, error) {
	found, err := d.client.GetImage(ctx, source.reference)
	if errdefs.IsNotFound(err) {
		found, err = d.client.GetImage(ctx, source.given)
	}
	if err != nil {
		return nil, err
	}
	// An image whose content is incomplete (another platform's, or a pull that was cut off) has to be pulled.
	ok, err := complete(ctx, found)
	if err == nil && !ok {
		err = fmt.Errorf("image %s: its content: %w", source.reference, errdefs.ErrNotFound)
	}
	return found, err
}

// importError says why an archive is of no use.
func importError(source imageSource, err error) error {
	return fmt.Errorf("option image = %q: %w", source.given, err)
}

var errNoArchive = errors.New("the file is no OCI or Docker image archive; write one with `docker save`, " +
	"`podman save --format oci-archive` or `skopeo copy … oci-archive:FILE`")

// checkImage checks the options about the image.
func (c *TaskConfig) checkImage(*Config) error {
	if c.Image == "" {
		return errors.New("option image must not be empty: name an image, such as \"docker.io/library/busybox:1.36\"")
	}
	if _, err := parseImage(c.Image); err != nil {
		return err
	}
	if c.ImagePullTimeout != "" {
		return checkDuration("option image_pull_timeout", c.ImagePullTimeout)
	}
	return nil
}

// pullTimeout is how long the pull of this task's image may take. Both values have been validated.
func (c *TaskConfig) pullTimeout(plugin *Config) time.Duration {
	value := c.ImagePullTimeout
	if value == "" {
		value = plugin.ImagePullTimeout
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		d, _ = time.ParseDuration(defaultPullTimeout)
	}
	return d
}
