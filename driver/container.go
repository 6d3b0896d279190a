package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/driver/userns"
)

// createContainer creates the container's record and snapshot.
func (d *Driver) createContainer(ctx context.Context, s *startup, i *image.Image) (containerd.Container, error) {
	if s.handOver != nil {
		if err := userns.HandOver(s.cfg, s.handOver); err != nil {
			return nil, err
		}
	}
	container, err := d.client.NewContainer(ctx, s.id,
		containerd.WithImageName(i.Name()),
		containerd.WithContainerLabels(spec.ContainerLabels(s.cfg, s.options, &d.config)),
		userns.WithLabel(s.hostIDs),
		containerd.WithSnapshotter(d.config.Snapshotter),
		userns.WithSnapshot(s.cfg, s.id, s.hostIDs, i),
		d.mounts.WithCheckedImage(s.options.Image),
		func(context.Context, *containerd.Client, *containers.Container) error {
			d.reach(failpoint.StartSnapshotMade)
			return nil
		},
		containerd.WithNewSpec(d.specOptions(s, i)...),
		withRuntime(s))
	if err != nil {
		return nil, d.client.Recoverable(fmt.Errorf("create the container: %w", err))
	}
	return container, nil
}

// startContainer creates the container's first process and starts it.
func (d *Driver) startContainer(ctx context.Context, s *startup, container containerd.Container) (task.State, error) {
	// A creation that is cut off in its midst may leave a shim of which containerd does not know. It is seen through even
	// if the start is superseded; only an unavailable containerd ends it.
	ctx, cancel := d.client.UntilUnavailable(context.WithoutCancel(ctx), d.startPatience)
	defer cancel()
	created, err := d.createTask(ctx, s, container)
	if err != nil {
		return task.State{}, err
	}
	d.reach(failpoint.StartTaskCreated)
	if err := cgroup.JoinCpuset(s.cfg, created.Pid()); err != nil {
		return task.State{}, err
	}
	// The process is looked up before it starts: it may end at once.
	state, err := task.NewState(s.id, created.Pid())
	if err != nil {
		d.logger.Debug("the task's process or shim was not found", "container", s.id, "error", err)
	}
	if err := created.Start(ctx); err != nil {
		return task.State{}, d.startError(s, client.Cause(ctx, err))
	}
	state.StartedAt = time.Now()
	return state, nil
}

// createTask creates the first process, which waits to be started. Its streams are Nomad's pipes.
func (d *Driver) createTask(ctx context.Context, s *startup, container containerd.Container) (containerd.Task, error) {
	stdin := ""
	if s.options.Interactive {
		file, remove, err := makeStdin(s.cfg)
		if err != nil {
			return nil, err
		}
		defer remove()
		stdin = file
	}
	streams := task.Streams(s.cfg, stdin, s.options.TTY, d.config.DisableLogCollection)
	pinned, closePipes, err := task.Pin(streams)
	if err != nil {
		return nil, fmt.Errorf("open the pipes of the task's logs: %w", err)
	}
	defer closePipes()
	unread := task.AwaitLogReaders(streams)
	created, err := container.NewTask(ctx, pinned)
	errUnread := unread()
	if err != nil {
		return nil, d.startError(s, client.Cause(ctx, err))
	}
	if errUnread != nil {
		return nil, recoverable.Error(fmt.Errorf("start the container: %w", errUnread))
	}
	return created, nil
}

// startError returns the error of a runtime that could not start the process, with its cause. runc and crun report it in
// text only.
func (d *Driver) startError(s *startup, err error) error {
	text := strings.ToLower(err.Error())
	switch {
	case client.IsUnavailable(err):
		return d.client.Recoverable(fmt.Errorf("start the container: %w", err))
	case s.options.MaxPids(&d.config) > 0 && isOutOfPids(text):
		return fmt.Errorf("start the container: pids_limit = %d is too low for the programs that start it and prepare its GPU; "+
			"set at least %d", s.options.MaxPids(&d.config), enoughPids)
	case strings.Contains(text, "binary not installed"):
		return fmt.Errorf("start the container: runtime %q is not installed: containerd looks for the program %s on its own "+
			"PATH; install it there, or choose another with the option runtime: %w", s.runtime.Name, s.runtime.ShimProgram(),
			err)
	case len(s.options.Ulimit) > 0 && strings.Contains(text, "rlimit"):
		return fmt.Errorf("start the container: the kernel of this node does not allow a limit of the option ulimit, %q: "+
			"lower it: %w", s.options.Ulimit.Merged(), err)
	case !strings.Contains(text, "exec: ") && !strings.Contains(text, "executable"):
	case strings.Contains(text, "executable file not found"), strings.Contains(text, "no such file or directory"):
		return fmt.Errorf("start the container: the command is not in image %q; check the options command and "+
			"entrypoint, and the image's own: %w", s.options.Image, err)
	case strings.Contains(text, "permission denied"):
		return fmt.Errorf("start the container: the command in image %q is not executable for this user; check the "+
			"options command and entrypoint and the task's user: %w", s.options.Image, err)
	}
	return fmt.Errorf("start the container: %w", err)
}

// enoughPids is a pids_limit under which the runtime and the hooks for a GPU can run.
const enoughPids = 32

// isOutOfPids reports whether a runtime or a hook could not make a process or thread, by the lower-case text of the error.
func isOutOfPids(text string) bool {
	return strings.Contains(text, "resource temporarily unavailable") || strings.Contains(text, "failed to create new os thread")
}

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

// withRuntime says what runs the container. It is applied after the option that makes the spec.
func withRuntime(s *startup) containerd.NewContainerOpts {
	return func(ctx context.Context, client *containerd.Client, c *containers.Container) error {
		return containerd.WithRuntime(s.runtime.Shim, s.runtime.Options(s.ioOwner))(ctx, client, c)
	}
}

// allocateHostIDs gives the task's container host IDs, if it is to have a user namespace, and fits its network to that. release is to be called when the
// container exists or will not.
func (d *Driver) allocateHostIDs(ctx context.Context, s *startup) (release func(), err error) {
	if s.options.Userns != userns.Auto {
		return func() {}, nil
	}
	all, err := d.config.HostIDs()
	if err != nil {
		return nil, err
	}
	if err := s.network.OpenLowPorts(); err != nil {
		return nil, err
	}
	if s.hostIDs, release, err = d.hostIDs.Allocate(ctx, s.id, all); err != nil {
		return nil, err
	}
	s.network.Owner = int(s.hostIDs.First)
	s.handOver = func(dir string) error { return userns.HandOverDir(dir, all, *s.hostIDs) }
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
