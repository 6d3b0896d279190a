package image

import (
	"fmt"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// validatePlatform checks the option platform.
func (o Options) validatePlatform() error {
	if o.Platform == "" {
		return nil
	}
	p, err := platforms.Parse(o.Platform)
	if err == nil && p.OS != "linux" {
		err = fmt.Errorf("containers run %s here", platforms.DefaultSpec().OS)
	}
	if err != nil {
		return fmt.Errorf("option platform = %q: %w; it may be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, such as "+
			"\"linux/amd64\" or \"linux/arm64/v8\"", o.Platform, err)
	}
	return nil
}

// platform is what to take of an image for several platforms: exactly what the task asks for, or what runs best on this
// node. The option has been validated.
func (o Options) platform() platforms.MatchComparer {
	p, err := platforms.Parse(o.Platform)
	if o.Platform == "" || err != nil {
		return platforms.Default()
	}
	return platforms.OnlyStrict(p)
}

// platformName is the platform for messages.
func (o Options) platformName() string {
	if o.Platform != "" {
		return o.Platform
	}
	return platforms.Format(platforms.DefaultSpec())
}

// checkPlatform compares the image's platform with the one that is wanted. An image for a single platform may have any,
// since it is not selected by platform. A task that asks for a platform must get it, as far as the image says what it is for:
// most leave out the variant. For others a node that emulates the image's platform may be enough, so that is only a task event.
func (s *Store) checkPlatform(r *Request, source imageSource, has ocispec.Platform) error {
	saysVariant := has.Variant != ""
	has = platforms.Normalize(has)
	if has.Architecture == "" || r.platform().Match(has) {
		return nil
	}
	if r.Platform != "" {
		if asked, err := platforms.Parse(r.Platform); err == nil && !saysVariant && sameProcessor(asked, has) {
			return nil
		}
		return fmt.Errorf("option platform = %q: image %q is for %s", r.Platform, source.given,
			platforms.Format(has))
	}
	need := "the node emulates that"
	if sameProcessor(platforms.DefaultSpec(), has) {
		need = fmt.Sprintf("the node's processor is of variant %s", has.Variant)
	}
	s.config.Notify(r.Task, map[string]string{"image": source.given}, "Image %s is for %s, and this node is %s: it runs only "+
		"if %s", source.given, platforms.Format(has), r.platformName(), need)
	return nil
}

// sameProcessor reports whether two platforms differ in the variant at most.
func sameProcessor(a, b ocispec.Platform) bool {
	return a.OS == b.OS && a.Architecture == b.Architecture
}
