package spec

import (
	"errors"
	"fmt"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/internal/percent"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/compute"
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
	return &network.Options{Mode: c.NetworkMode, Hostname: c.Hostname, ExtraHosts: c.ExtraHosts, Readonly: c.ReadonlyRootfs,
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

// GPUComputeRequest returns what the block gpu_compute states.
func (c *TaskConfig) GPUComputeRequest() (r compute.Request, err error) {
	if c.GPUCompute == nil {
		return r, nil
	}
	for _, part := range []struct {
		name, value string
		to          *int
	}{{"share", c.GPUCompute.Share, &r.Share}, {"max", c.GPUCompute.Max, &r.Max}} {
		if part.value == "" {
			continue
		}
		if *part.to, err = percent.Parse(part.value); err != nil {
			return r, fmt.Errorf("option gpu_compute.%s %w", part.name, err)
		}
	}
	if c.GPUCompute.Priority != "" {
		if r.Class, err = claim.ParseClass(c.GPUCompute.Priority); err != nil {
			return r, fmt.Errorf("option gpu_compute.priority: %w", err)
		}
	}
	switch err = r.Check(); {
	case err != nil:
		return r, fmt.Errorf("option gpu_compute: %w", err)
	case !r.Stated():
		return r, errors.New("option gpu_compute is empty: it has share, max and priority")
	}
	return r, nil
}

// GPUComputeBounds returns what a task may state with gpu_compute.
func (c *Config) GPUComputeBounds() (compute.Bounds, error) {
	b := compute.Bounds{HighPriority: c.GPUComputeHighPriority}
	if c.GPUComputeMaxShare == "" || c.GPUComputeMaxShare == "0" {
		return b, nil
	}
	share, err := percent.Parse(c.GPUComputeMaxShare)
	if err != nil {
		return b, fmt.Errorf("plugin option gpu_compute_max_share %w", err)
	}
	b.MaxShare = share
	return b, nil
}

// GPUOptions returns what the task requests of its GPUs.
func (c *TaskConfig) GPUOptions(plugin *Config) (o gpu.Options, err error) {
	if o.HostMemoryBytes, err = c.GPUHostMemoryBytes(plugin); err != nil {
		return o, err
	}
	if o.Compute, err = c.GPUComputeRequest(); err != nil {
		return o, err
	}
	o.ComputeBounds, err = plugin.GPUComputeBounds()
	return o, err
}

// checkGPUCompute checks what can be checked of gpu_compute before the task's claims are known.
func (c *TaskConfig) checkGPUCompute(plugin *Config) error {
	r, err := c.GPUComputeRequest()
	if err != nil {
		return err
	}
	b, err := plugin.GPUComputeBounds()
	if err != nil {
		return err
	}
	if err := b.Check(r); err != nil {
		return fmt.Errorf("option gpu_compute.%w", err)
	}
	return nil
}

// checkGPU checks the options about GPUs.
func (c *TaskConfig) checkGPU(plugin *Config) error {
	_, err := c.GPUHostMemoryBytes(plugin)
	return errors.Join(err, c.checkGPUCompute(plugin), gpu.CheckOptions(c.Annotations.Merged(), c.Devices))
}
