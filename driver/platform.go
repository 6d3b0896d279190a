package driver

import (
	"fmt"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// checkPlatform checks the option platform.
func (c *TaskConfig) checkPlatform() error {
	if c.Platform == "" {
		return nil
	}
	p, err := platforms.Parse(c.Platform)
	if err == nil && p.OS != "linux" {
		err = fmt.Errorf("containers run %s here", platforms.DefaultSpec().OS)
	}
	if err != nil {
		return fmt.Errorf("option platform = %q: %w; it may be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, such as "+
			"\"linux/amd64\" or \"linux/arm64/v8\"", c.Platform, err)
	}
	return nil
}

// platform is what to take of an image for several platforms: exactly what the task asks for, or what runs best on this
// node. The option has been validated.
func (c *TaskConfig) platform() platforms.MatchComparer {
	p, err := platforms.Parse(c.Platform)
	if c.Platform == "" || err != nil {
		return platforms.Default()
	}
	return platforms.OnlyStrict(p)
}

// platformName is the platform for messages.
func (c *TaskConfig) platformName() string {
	if c.Platform != "" {
		return c.Platform
	}
	return platforms.Format(platforms.DefaultSpec())
}

// judgePlatform compares what an image is for with what is wanted. An image for a single platform is not chosen by its
// platform, so that it may be any. Who asks for one must get it; who does not may have an emulator for what came.
func (d *Driver) judgePlatform(s *startup, source imageSource, has ocispec.Platform) error {
	has = platforms.Normalize(has)
	if has.Architecture == "" || s.options.platform().Match(has) {
		return nil
	}
	if s.options.Platform != "" {
		return fmt.Errorf("option platform = %q: image %q is for %s", s.options.Platform, source.given,
			platforms.Format(has))
	}
	d.say(s.cfg, map[string]string{"image": source.given}, "Image %s is for %s, and this node is %s: it runs only if the "+
		"node emulates that", source.given, platforms.Format(has), s.options.platformName())
	return nil
}
