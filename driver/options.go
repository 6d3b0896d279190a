package driver

import (
	"context"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/storage"
)

// Spec is the OCI spec that an option changes.
type Spec = oci.Spec

// specOptions is the task's container as a list: what containerd starts from, then each option of the jobspec, and at
// the end the GPU, whose mounts nothing may cover. A user namespace of the container's own is about all of them.
func (d *Driver) specOptions(s *startup, i *image.Image) []oci.SpecOpts {
	return []oci.SpecOpts{
		oci.WithDefaultSpec(),
		withSpecVersion,
		oci.WithoutRunMount,
		withNoNewPrivileges(s.options),
		withImageEnv(i.Process),
		withTaskEnv(s.cfg),
		withArgs(s.options, i.Process, s.options.Image),
		withWorkDir(s.options.WorkDir, i.Process.WorkingDir),
		d.withTaskUser(s.cfg.User, i.Process.User, s.options.Image),
		withGroups(s.options.GroupAdd, s.options.Image),
		withTTY(s.options.TTY),
		withUlimits(s.options),
		withOOMScoreAdj(s.options, &d.config),
		withReadonlyRootfs(s.options.ReadonlyRootfs),
		withAnnotations(s.options),
		withCapabilities(s.options, &d.config),
		withCgroup(s.cfg),
		withCPU(s.cfg, d.totalTicks),
		withCPUHardLimit(s.cfg, s.options, d.ticksPerCore),
		withMemory(s.cfg, hostAccountsSwap()),
		withMemorySwap(s.options, hostAccountsSwap()),
		withMemorySwappiness(s.options, cgroup.Unified()),
		withPidsLimit(s.options, &d.config),
		withShmSize(s.options),
		withCgroupMount,
		s.network.WithNamespace(),
		s.network.WithHostname(),
		withSysctls(s.options, s.network, s.hostIDs != nil),
		s.network.WithFiles(),
		storage.WithTaskDirs(s.cfg),
		storage.WithVolumes(s.cfg),
		s.storage.WithMounts(),
		withNamespaces(s.options, cgroup.Unified()),
		withPrivileged(s.options),
		withDevices(s.cfg),
		withHostDevices(s.options, &d.config),
		withCDIDevices(s.options, &d.config),
		withInit(s.init),
		withSystemPaths(s.options),
		withSeccomp(s.cfg, s.options, &d.config),
		withAppArmor(s.options, hostAppArmor),
		withSELinux(s.options),
		s.storage.WithRelabels(),
		storage.WithMountOrder(),
		s.gpu.WithGPU(),
		withUserNamespace(s.hostIDs, s.cfg.User, &d.config),
		withIOOwner(s),
	}
}

// specOption makes an option of a function that needs nothing but the spec.
func specOption(edit func(*Spec) error) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *Spec) error { return edit(s) }
}
