package runtime

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"tranche.dev/tranche/runtime/gpunode"
)

// besideNVIDIA takes out of a spec what NVIDIA's tools have put in, or would act upon later: who asked for a fraction of
// a GPU gets that, and not also the GPUs that the engine was told of (docker --gpus), that CUDA images ask for in their
// environment, or that a CDI device stands for. What the container needs of it, our own edits bring, with the shadow.
//
// NVIDIA's runtime and hook come before or after us, as the node's configuration has it. Before: their edits are in
// the spec. After: they find that nothing is asked for, since besides what is taken out here, NVIDIA_VISIBLE_DEVICES
// becomes void. What still gets through, by a configuration that nobody here knows of, the createContainer hook sees.
type besideNVIDIA struct {
	devices nvidiaDevices
	// files are those that CDI mounts for NVIDIA's GPUs, each with where to.
	files map[[2]string]bool
}

// newBesideNVIDIA knows NVIDIA's mounts from the edits by which they come, whoever applied them.
func newBesideNVIDIA(edits ...*cdi.ContainerEdits) (besideNVIDIA, error) {
	devices, err := hostDevices()
	if err != nil {
		return besideNVIDIA{}, err
	}
	files := map[[2]string]bool{}
	for _, edit := range edits {
		for _, mount := range edit.Mounts {
			files[[2]string{mount.HostPath, mount.ContainerPath}] = true
		}
	}
	return besideNVIDIA{devices: devices, files: files}, nil
}

// Modify takes NVIDIA's edits out.
func (b besideNVIDIA) Modify(spec *specs.Spec) error {
	spec.Linux.Devices = slices.DeleteFunc(slices.Clone(spec.Linux.Devices), func(d specs.LinuxDevice) bool {
		return gpunode.Is(containerPath(d.Path)) || b.devices.has(d.Type, d.Major, d.Minor)
	})
	if resources := spec.Linux.Resources; resources != nil {
		resources.Devices = slices.DeleteFunc(slices.Clone(resources.Devices), b.allowsGPU)
	}
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), b.isNVIDIAs)
	for _, stage := range hookKinds(spec) {
		*stage = slices.DeleteFunc(slices.Clone(*stage), isNVIDIAHook)
	}
	withoutDeviceRequests(spec.Annotations)
	return nil
}

// allowsGPU tells whether a rule of the devices' cgroup lets the container at an NVIDIA GPU. One for all devices there
// are is a privileged container's, which nothing holds back anyway.
func (b besideNVIDIA) allowsGPU(rule specs.LinuxDeviceCgroup) bool {
	if !rule.Allow || rule.Major == nil {
		return false
	}
	minor := int64(-1) // any
	if rule.Minor != nil {
		minor = *rule.Minor
	}
	kind := rule.Type
	if kind == "" || kind == "a" {
		kind = "c"
	}
	return b.devices.has(kind, *rule.Major, minor)
}

func (b besideNVIDIA) isNVIDIAs(mount specs.Mount) bool {
	at := containerPath(mount.Destination)
	return b.files[[2]string{mount.Source, at}] || b.devices.mounts(mount) ||
		at == gpuMounts || strings.HasPrefix(at, gpuMounts+"/")
}

// isNVIDIAHook tells whether a hook is one of NVIDIA's, by the name of its program or of what links lead to.
func isNVIDIAHook(hook specs.Hook) bool {
	if isGPUHook(hook) {
		return true
	}
	target, err := filepath.EvalSymlinks(hook.Path)
	return err == nil && isGPUHook(specs.Hook{Path: target})
}

// withoutDeviceRequests takes the names of NVIDIA's CDI devices out of annotations: NVIDIA's runtime heeds those before
// any variable. Under which keys it looks, its configuration says, so all are looked at.
func withoutDeviceRequests(annotations map[string]string) {
	for key, value := range annotations {
		if !strings.Contains(value, "nvidia.com/") {
			continue
		}
		names := strings.Split(value, ",")
		others := slices.DeleteFunc(slices.Clone(names), isNVIDIADevice)
		switch {
		case len(others) == len(names):
		case len(others) == 0:
			delete(annotations, key)
		default:
			annotations[key] = strings.Join(others, ",")
		}
	}
}

// isNVIDIADevice tells whether a text is the name of a CDI device of NVIDIA's, such as nvidia.com/gpu=all or
// runtime.nvidia.com/gpu=0.
func isNVIDIADevice(name string) bool {
	vendor, _, _ := parser.ParseDevice(strings.TrimSpace(name))
	return vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com")
}
