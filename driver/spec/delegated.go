package spec

import (
	"errors"
	"time"

	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/runtime"
)

// Options that packages of their own apply: what each of these gets of the task's and the plugin's options, and the checks.

// ImageOptions returns the task's options about its image. Check has checked both timeouts.
func (c *TaskConfig) ImageOptions(plugin *Config) image.Options {
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
	errs := []error{c.ImageOptions(plugin).Check()}
	if c.ImagePullTimeout != "" {
		errs = append(errs, checkDuration("option image_pull_timeout", c.ImagePullTimeout))
	}
	return errors.Join(errs...)
}

// ImageConfig returns the plugin's options about images. The caller adds the client, the logger and the events.
func (c *Config) ImageConfig() image.Config {
	return image.Config{
		RegistryHostsDir:    c.RegistryHostsDir,
		Credentials:         c.Auth,
		PullActivityTimeout: firstDuration(c.PullActivityTimeout, defaultPullActivityTimeout),
		Collect:             c.GC.Image,
		CollectDelay:        firstDuration(c.GC.ImageDelay),
	}
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

// firstDuration returns the first of the values that is a duration.
func firstDuration(values ...string) time.Duration {
	for _, value := range values {
		if d, err := time.ParseDuration(value); err == nil {
			return d
		}
	}
	return 0
}

// StorageOptions returns the task's options about what it mounts.
func (c *TaskConfig) StorageOptions() *storage.Options {
	return &storage.Options{Mounts: c.Mounts, MountsList: c.MountsList, Volumes: c.Volumes, Tmpfs: c.Tmpfs,
		ImageVolumes: c.ImageVolumes}
}

// StoragePolicy returns the plugin's options about what tasks may mount.
func (c *Config) StoragePolicy() storage.Policy {
	return storage.Policy{Enabled: c.Volumes.Enabled, SelinuxLabel: c.Volumes.SelinuxLabel}
}

// VolumesRoot returns where the named volumes are.
func (c *Config) VolumesRoot() string {
	if c.VolumeDir == "" {
		return defaultVolumeDir
	}
	return c.VolumeDir
}

// NetworkOptions returns the task's options about its network.
func (c *TaskConfig) NetworkOptions() *network.Options {
	return &network.Options{Mode: c.NetworkMode, Hostname: c.Hostname, ExtraHosts: c.ExtraHosts,
		DNSServers: c.DNSServers, DNSSearchDomains: c.DNSSearchDomains, DNSOptions: c.DNSOptions}
}

// GPUHostMemoryBytes returns gpu_host_memory in bytes, or why the node does not allow it.
func (c *TaskConfig) GPUHostMemoryBytes(plugin *Config) (uint64, error) {
	most, err := plugin.gpuHostMemoryMaxBytes()
	if err != nil {
		return 0, err
	}
	return runtime.GPUHostMemory("option gpu_host_memory", c.GPUHostMemory, most)
}

// checkGPU checks the options about GPUs.
func (c *TaskConfig) checkGPU(plugin *Config) error {
	_, err := c.GPUHostMemoryBytes(plugin)
	return errors.Join(err, gpu.CheckOptions(c.Annotations.Merged(), c.Devices))
}
