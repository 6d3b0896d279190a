package driver

import (
	"context"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// Spec is the OCI spec that an option changes.
type Spec = oci.Spec

// specOptions is the task's container as a list: what containerd starts from, then each option of the jobspec, and at
// the end the GPU, whose mounts nothing may cover. A user namespace of the container's own is about all of them.
func (d *Driver) specOptions(s *startup, i *image) []oci.SpecOpts {
	return []oci.SpecOpts{
		oci.WithDefaultSpec(),
		oci.WithoutRunMount,
		withNoNewPrivileges(s.options),
		withImageEnv(i.config),
		withTaskEnv(s.cfg),
		withArgs(s.options, i.config, s.options.Image),
		withWorkDir(s.options.WorkDir, i.config.WorkingDir),
		d.withTaskUser(s.cfg.User, i.config.User, s.options.Image),
		withCapabilities(s.options, &d.config),
		withCgroup(s.cfg),
		withCPU(s.cfg),
		withMemory(s.cfg, hostAccountsSwap()),
		withCgroupMount,
		withNetwork(s.network),
		withHostname(s.network),
		withNetworkFiles(s.network),
		withTaskDirs(s.cfg),
		withVolumes(s.cfg),
		withNamespaces(s.options, cgroups.Mode() == cgroups.Unified),
		withPrivileged(s.options),
		withDevices(s.cfg),
		withHostDevices(s.options, &d.config),
		withCDIDevices(s.options, &d.config),
		withSystemPaths(s.options),
		withSeccomp(s.cfg, s.options, &d.config),
		withAppArmor(s.options, hostAppArmor),
		withSELinux(s.options),
		withGPU(s.grant),
		withUserNamespace(s.hostIDs, s.cfg.User, &d.config),
	}
}

// specOption makes an option of a function that needs nothing but the spec.
func specOption(edit func(*Spec) error) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *Spec) error { return edit(s) }
}
