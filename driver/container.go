package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/userns"
)

// specOptions returns what makes the container's OCI spec. The last one finds out who owns the pipes of the container's streams:
// the options before it set the user.
func (d *Driver) specOptions(s *startup, i *image.Image) []oci.SpecOpts {
	container := spec.Container{Task: s.cfg, Options: s.options, Plugin: &d.config, Process: i.Process, Init: s.init,
		Network: s.network, Storage: s.storage, GPU: s.gpu, HostIDs: s.hostIDs, TicksPerCore: d.ticksPerCore, TotalTicks: d.totalTicks}
	return append(container.SpecOptions(),
		func(_ context.Context, _ oci.Client, _ *containers.Container, made *oci.Spec) error {
			s.ioOwner = userns.OwnerOfIO(s.hostIDs, made)
			return nil
		})
}

// withRuntime says what runs the container. It stands after the option that makes the spec.
func withRuntime(s *startup) containerd.NewContainerOpts {
	return func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		return containerd.WithRuntime(s.runtime.Shim, s.runtime.Options(s.ioOwner))(ctx, client, c)
	}
}

// allocateHostIDs gives the task's container host IDs, and its directories to these, if it is to have a user namespace.
func (d *Driver) allocateHostIDs(ctx context.Context, s *startup) (release func(), err error) {
	if s.options.Userns != userns.Auto {
		return func() {}, nil
	}
	all, err := d.config.HostIDs()
	if err != nil {
		return nil, err
	}
	if s.hostIDs, release, err = d.hostIDs.Allocate(ctx, s.id, all); err != nil {
		return nil, err
	}
	if err := userns.HandOver(s.cfg, all, *s.hostIDs); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// makeStdin makes the pipe that is the stdin of an interactive task. The shim opens both of its ends while it creates the
// container and holds them as long as that lives; afterwards nobody needs the name, and remove takes it away.
func makeStdin(cfg *drivers.TaskConfig) (file string, remove func(), err error) {
	file = filepath.Join(cfg.TaskDir().Dir, ".stdin.fifo")
	// One is there if this plugin died while it started the task.
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return "", nil, fmt.Errorf("make the task's stdin: %w", err)
	}
	if err := unix.Mkfifo(file, 0o600); err != nil {
		return "", nil, fmt.Errorf("make the task's stdin %s: %w", file, err)
	}
	return file, func() { _ = os.Remove(file) }, nil
}
