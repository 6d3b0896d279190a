package bundle

import (
	"github.com/opencontainers/runtime-spec/specs-go"
)

// glance is the part of a spec that can request GPUs, and the root file system.
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

// Glance parses only the parts of a spec that can request GPUs: the environment, mounts, hooks and annotations, the devices
// and the device cgroup's rules; and the root file system. It is fast, since most containers request none.
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
