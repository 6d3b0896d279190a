package driver

import "github.com/tranche-gpu/tranche/driver/storage"

// storageOptions are the task's options about what it mounts.
func (c *TaskConfig) storageOptions() *storage.Options {
	return &storage.Options{Mounts: c.Mounts, MountsList: c.MountsList, Volumes: c.Volumes, Tmpfs: c.Tmpfs,
		ImageVolumes: c.ImageVolumes}
}

// checkStorage checks the options about mounts and volumes.
func (c *TaskConfig) checkStorage(plugin *Config) error {
	return c.storageOptions().Check(plugin.storagePolicy())
}

// storagePolicy is the plugin's options about what tasks may mount.
func (c *Config) storagePolicy() storage.Policy {
	return storage.Policy{Enabled: c.Volumes.Enabled, SelinuxLabel: c.Volumes.SelinuxLabel}
}

// volumeDir is where the named volumes are.
func (c *Config) volumeDir() string {
	if c.VolumeDir == "" {
		return defaultVolumeDir
	}
	return c.VolumeDir
}

// newStorage makes what makes mounts ready. d.client and d.runDir are set.
func (d *Driver) newStorage() *storage.Storage {
	return storage.New(storage.Config{Policy: d.config.storagePolicy(), Client: d.client, Logger: d.logger,
		VolumeDir: d.config.volumeDir(), RunDir: d.runDir})
}
