// Package spec has the options of a task and of the plugin: their schemas and checks, and what each does to the OCI spec of the
// task's container. It creates no container and keeps no state.
package spec

import (
	"context"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/driver/userns"
)

// Spec is the OCI spec that an option changes.
type Spec = oci.Spec

// Container is a task's container before its OCI spec is made.
type Container struct {
	Task    *drivers.TaskConfig
	Options *TaskConfig
	Plugin  *Config
	// Process is the process in the image's configuration.
	Process ocispec.ImageConfig
	// Init is the host's program for the option init; empty for none.
	Init    string
	Network *network.Network
	Storage *storage.Prepared
	GPU     *gpu.Prepared
	// HostIDs are the host's IDs that the container has; nil where it has no user namespace of its own.
	HostIDs *userns.Range
	// TicksPerCore is the capacity of one core in MHz, by which Nomad accounts CPU, and TotalTicks that of all of them;
	// 0 where unknown.
	TicksPerCore, TotalTicks float64
}

// SpecOptions returns the task's container as a list: what containerd starts from, then each option of the jobspec, and at
// the end the GPU, whose mounts nothing may cover. A user namespace of the container's own changes all of them.
func (c *Container) SpecOptions() []oci.SpecOpts {
	options, unified := c.Options, cgroup.Unified()
	return []oci.SpecOpts{
		oci.WithDefaultSpec(),
		withSpecVersion,
		oci.WithoutRunMount,
		withNoNewPrivileges(options),
		withImageEnv(c.Process),
		withTaskEnv(c.Task),
		withArgs(options, c.Process, options.Image),
		withWorkDir(options.WorkDir, c.Process.WorkingDir),
		withTaskUser(c.Task.User, c.Process.User, options.Image, c.Plugin),
		withGroups(options.GroupAdd, options.Image),
		withTTY(options.TTY),
		withUlimits(options),
		withOOMScoreAdj(options, c.Plugin),
		withReadonlyRootfs(options.ReadonlyRootfs),
		withAnnotations(options),
		withCapabilities(options, c.Plugin),
		withCgroup(c.Task),
		withCPU(c.Task, c.TotalTicks),
		withCPUHardLimit(c.Task, options, c.TicksPerCore),
		withMemory(c.Task, hostAccountsSwap()),
		withMemorySwap(options, hostAccountsSwap()),
		withMemorySwappiness(options, unified),
		withPidsLimit(options, c.Plugin),
		withShmSize(options),
		withCgroupMount,
		c.Network.WithNamespace(),
		c.Network.WithHostname(),
		withSysctls(options, c.Network, c.HostIDs != nil),
		c.Network.WithFiles(),
		storage.WithTaskDirs(c.Task),
		storage.WithVolumes(c.Task),
		c.Storage.WithMounts(),
		withNamespaces(options, unified),
		withPrivileged(options),
		withDevices(c.Task),
		withHostDevices(options, c.Plugin),
		withCDIDevices(options, c.Plugin),
		withInit(c.Init),
		withSystemPaths(options),
		withSeccomp(c.Task, options, c.Plugin),
		withAppArmor(options, hostAppArmor),
		withSELinux(options),
		c.Storage.WithRelabels(),
		storage.WithMountOrder(),
		c.GPU.WithGPU(),
		withUserNamespace(c.HostIDs, c.Task.User, c.Plugin),
	}
}

// specOption makes an option of a function that needs nothing but the spec.
func specOption(edit func(*Spec) error) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *Spec) error { return edit(s) }
}
