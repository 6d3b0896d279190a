package image

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/distribution/reference"
)

// Options are a task's options about its image.
type Options struct {
	// Image is a reference, or an archive in the task's directories.
	Image string
	// ForcePull queries the registry even if containerd has the image.
	ForcePull bool
	// Platform is what to take of an image for several; empty means the node's.
	Platform string
	// Auth is for the registry. AuthSoftFail pulls without credentials where none can be had.
	Auth         Auth
	AuthSoftFail bool
	// PullTimeout bounds the pull.
	PullTimeout time.Duration
}

// Check checks the options. Every error names the option.
func (o Options) Check() error {
	if o.Image == "" {
		return errors.New("option image must not be empty: name an image, such as \"docker.io/library/busybox:1.36\"")
	}
	_, err := parseImage(o.Image)
	return errors.Join(err, o.validatePlatform(), o.Auth.check())
}

// What the option image may start with to name an archive: PREFIX:PATH, or PREFIX:PATH:NAME for one of several images in
// it. An archive is what `docker save`, `podman save` or `skopeo copy` writes, and what the docker driver's option load
// takes; an artifact or template block, or another task, puts it into the task's directories. Both kinds are told apart
// by their content; there are two names because that is what users of other tools write.
var archivePrefixes = []string{"oci-archive:", "docker-archive:"}

// source is the option image, taken apart: a reference, or an archive in the task's directories.
type imageSource struct {
	// given is the option as it is in the jobspec, for messages.
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

// latest reports whether the image's tag is the one that means whatever is newest.
func (i imageSource) latest() bool { return strings.HasSuffix(i.reference, ":latest") }
