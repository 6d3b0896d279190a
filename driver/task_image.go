package driver

import (
	"errors"
	"time"

	"github.com/tranche-gpu/tranche/driver/image"
)

// imageOptions are the task's options about its image. Both timeouts have been validated.
func (c *TaskConfig) imageOptions(plugin *Config) image.Options {
	return image.Options{
		Image:        c.Image,
		ForcePull:    c.ForcePull,
		Platform:     c.Platform,
		Auth:         c.Auth,
		AuthSoftFail: c.AuthSoftFail,
		PullTimeout:  firstDuration(c.ImagePullTimeout, plugin.ImagePullTimeout, defaultPullTimeout),
	}
}

// checkImage checks the options about the image.
func (c *TaskConfig) checkImage(plugin *Config) error {
	errs := []error{c.imageOptions(plugin).Check()}
	if c.ImagePullTimeout != "" {
		errs = append(errs, checkDuration("option image_pull_timeout", c.ImagePullTimeout))
	}
	return errors.Join(errs...)
}

// checkImages checks the plugin's options about images.
func (c *Config) checkImages() error {
	errs := []error{c.Auth.Check()}
	if c.PullActivityTimeout != "" {
		errs = append(errs, checkDuration("plugin option pull_activity_timeout", c.PullActivityTimeout))
	}
	if c.GC.Image {
		errs = append(errs, checkDuration("plugin option gc.image_delay", c.GC.ImageDelay))
	}
	return errors.Join(errs...)
}

// firstDuration is the first of the values that is a duration.
func firstDuration(values ...string) time.Duration {
	for _, value := range values {
		if d, err := time.ParseDuration(value); err == nil {
			return d
		}
	}
	return 0
}

// newImages returns the store of images. d.client is set.
func (d *Driver) newImages() *image.Store {
	return image.NewStore(image.Config{
		Client:              d.client,
		Logger:              d.logger,
		Notify:              d.notify,
		RegistryHostsDir:    d.config.RegistryHostsDir,
		Credentials:         d.config.Auth,
		PullActivityTimeout: firstDuration(d.config.PullActivityTimeout, defaultPullActivityTimeout),
		Collect:             d.config.GC.Image,
		CollectDelay:        firstDuration(d.config.GC.ImageDelay),
	})
}
