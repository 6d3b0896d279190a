package edit

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/tranche-gpu/tranche/runtime/nvidia"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// nvidiaRemoval removes from a spec what NVIDIA's tools have added, or would act upon later. A container with a claim is to
// have that fraction of a GPU, and not also the GPUs of docker --gpus, of a CUDA image's environment, or of a CDI device.
// The other edits add what the container needs of it, with the shadow.
//
// NVIDIA's runtime and hook run before or after tranche-runtime, depending on the node's configuration. Before: their edits
// are in the spec. After: they find no request, since this edit removes all but NVIDIA_VISIBLE_DEVICES, which Environment
// sets to void. The createContainer hook detects what is added by other configurations.
type nvidiaRemoval struct {
	devices nvidia.Devices
	// files are the mounts of CDI for NVIDIA's GPUs: path on the host, path in the container.
	files map[[2]string]bool
}

// newNVIDIARemoval returns an edit that also removes the mounts in the given CDI edits.
func newNVIDIARemoval(edits ...*cdi.ContainerEdits) (nvidiaRemoval, error) {
	devices, err := nvidia.HostDevices()
	if err != nil {
		return nvidiaRemoval{}, err
	}
	files := map[[2]string]bool{}
	for _, edit := range edits {
		for _, mount := range edit.Mounts {
			files[[2]string{mount.HostPath, mount.ContainerPath}] = true
		}
	}
	return nvidiaRemoval{devices: devices, files: files}, nil
}

// Modify removes NVIDIA's edits.
func (b nvidiaRemoval) Modify(spec *specs.Spec) error {
	b.devices.Remove(spec)
	spec.Mounts = slices.DeleteFunc(spec.Mounts, func(mount specs.Mount) bool {
		return b.files[[2]string{mount.Source, ocispec.ContainerPath(mount.Destination)}]
	})
	return nil
}
