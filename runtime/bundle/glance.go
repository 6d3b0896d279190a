package bundle

import (
	"github.com/opencontainers/runtime-spec/specs-go"
)

// glance is the part of a spec by which a container can ask for GPUs, and where its files are.
type glance struct {
	Process *struct {
		Env []string `json:"env"`
	} `json:"process"`
	Root        *specs.Root       `json:"root"`
	Mounts      []specs.Mount     `json:"mounts"`
	Hooks       *specs.Hooks      `json:"hooks"`
	Annotations map[string]string `json:"annotations"`
	Linux       *struct {
		Devices   []specs.LinuxDevice `json:"devices"`
		Resources *struct {
			Devices []specs.LinuxDeviceCgroup `json:"devices"`
		} `json:"resources"`
	} `json:"linux"`
}

// Glance reads no more of a spec that was read than tells whether its container asks for GPUs: the environment, the mounts, hooks and
// annotations, the devices and what their cgroup allows; and the root file system. Most containers ask for none, and wait for nothing else of us.
func (f *File) Glance() (*specs.Spec, error) {
	var g glance
	if err := f.Parse(&g); err != nil {
		return nil, err
	}
	spec := &specs.Spec{Root: g.Root, Mounts: g.Mounts, Hooks: g.Hooks, Annotations: g.Annotations}
	if g.Process != nil {
		spec.Process = &specs.Process{Env: g.Process.Env}
	}
	if g.Linux != nil {
		spec.Linux = &specs.Linux{Devices: g.Linux.Devices}
		if g.Linux.Resources != nil {
			spec.Linux.Resources = &specs.LinuxResources{Devices: g.Linux.Resources.Devices}
		}
	}
	return spec, nil
}
