package storage

import (
	"fmt"
	"maps"
	"path"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// What image_volumes can be; empty means imageVolumesAnonymous.
const (
	imageVolumesAnonymous = "anonymous"
	imageVolumesTmpfs     = "tmpfs"
	imageVolumesIgnore    = "ignore"
)

// checkImageVolumes checks the option image_volumes.
func (o *Options) checkImageVolumes() error {
	switch o.ImageVolumes {
	case "", imageVolumesAnonymous, imageVolumesTmpfs, imageVolumesIgnore:
		return nil
	}
	return fmt.Errorf("option image_volumes = %q: must be %q, %q or %q",
		o.ImageVolumes, imageVolumesAnonymous, imageVolumesTmpfs, imageVolumesIgnore)
}

// imageVolumes are the mounts for the volumes that an image declares, but for those at whose place something is mounted
// already. The image may come from anywhere: what a job may not mount it may not either.
func imageVolumes(config ocispec.ImageConfig, mode string, taken map[string]bool) ([]wantedMount, error) {
	if mode == imageVolumesIgnore {
		return nil, nil
	}
	var all []wantedMount
	for _, declared := range slices.Sorted(maps.Keys(config.Volumes)) {
		if taken[path.Clean(declared)] {
			continue
		}
		target, err := mountTarget(declared)
		if err != nil {
			return nil, fmt.Errorf("it declares a volume: %w; if the task can do without, set image_volumes = \"ignore\"", err)
		}
		taken[target] = true
		w := wantedMount{option: fmt.Sprintf("volume %s of the image", declared), kind: mountVolume, target: target,
			propagation: Private}
		if mode == imageVolumesTmpfs {
			// The runtime gives it the mode of the directory that the image has there.
			w.kind, w.tmpfs = mountTmpfs, []string{"exec"}
		}
		all = append(all, w)
	}
	return all, nil
}
