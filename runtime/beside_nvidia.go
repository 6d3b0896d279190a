package runtime

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// besideNVIDIA takes out of a spec what NVIDIA's tools have put in, or would act upon later: who asked for a fraction of
// a GPU gets that, and not also the GPUs that the engine was told of (docker --gpus), that CUDA images ask for in their
// environment, or that a CDI device stands for. What the container needs of it, our own edits bring, with the shadow.
//
// NVIDIA's runtime and hook come before or after us, as the node's configuration has it. Before: their edits are in
// the spec. After: they find that nothing is asked for, since besides what is taken out here, NVIDIA_VISIBLE_DEVICES
// becomes void. What still gets through, by a configuration that nobody here knows of, the createContainer hook sees.
type besideNVIDIA struct {
	nvidia nvidiaParts
	// files are those that CDI mounts for NVIDIA's GPUs, each with where to.
	files map[[2]string]bool
}

// newBesideNVIDIA knows NVIDIA's mounts from the edits by which they come, whoever applied them.
func newBesideNVIDIA(edits ...*cdi.ContainerEdits) (besideNVIDIA, error) {
	nvidia, err := hostNVIDIAParts()
	if err != nil {
		return besideNVIDIA{}, err
	}
	files := map[[2]string]bool{}
	for _, edit := range edits {
		for _, mount := range edit.Mounts {
			files[[2]string{mount.HostPath, mount.ContainerPath}] = true
		}
	}
	return besideNVIDIA{nvidia: nvidia, files: files}, nil
}

// Modify takes NVIDIA's edits out.
func (b besideNVIDIA) Modify(spec *specs.Spec) error {
	b.nvidia.takeOut(spec)
	spec.Mounts = slices.DeleteFunc(spec.Mounts, func(mount specs.Mount) bool {
		return b.files[[2]string{mount.Source, containerPath(mount.Destination)}]
	})
	return nil
}
