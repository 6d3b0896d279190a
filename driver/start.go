package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	nstructs "github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// startup is one StartTask on its way.
type startup struct {
	cfg     *drivers.TaskConfig
	options *TaskConfig
	id      string // of the container
	runtime string
	network *network
	// hostMemoryBytes is what the task may allocate beyond its limit of GPU memory.
	hostMemoryBytes uint64
	grant           *grant
	// hostIDs are the host's IDs that the container has; nil where it has no user namespace of its own.
	hostIDs *idRange
}

// taskState is what Nomad keeps for us across restarts of the plugin and the agent.
type taskState struct {
	ContainerID string
	PID         uint32
	Shim        shimEndpoint
	StopSignal  string
	StartedAt   time.Time
}

// StartTask starts the task's container. When it fails, nothing of the container is left.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if _, ok := d.tasks.get(cfg.ID); ok {
		return nil, nil, fmt.Errorf("task %s has been started already", cfg.ID)
	}
	if err := d.awaitContainerd(); err != nil {
		return nil, nil, err
	}
	ctx := d.namespaced(d.ctx)
	s, err := d.prepare(cfg)
	if err != nil {
		return nil, nil, err
	}
	defer keepLogsOpen(cfg)()
	// First, since one of them could still hold the task's claim.
	if err := d.removeOlderLives(ctx, s); err != nil {
		return nil, nil, err
	}
	if s.grant, err = d.grants.of(ctx, cfg, s.id, s.hostMemoryBytes); err != nil {
		return nil, nil, err
	}
	ctx, release, err := d.hold(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	h, err := d.launch(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	handle, err := h.nomadHandle()
	if err != nil {
		d.discard(s.id)
		return nil, nil, err
	}
	d.adopt(h)
	for _, line := range s.grant.describe() {
		d.say(cfg, nil, "%s", line)
	}
	return handle, nil, nil
}

// prepare checks everything that can be checked before containerd is asked for anything.
func (d *Driver) prepare(cfg *drivers.TaskConfig) (*startup, error) {
	taskOptions, err := decodeTaskConfig(cfg, &d.config)
	if err != nil {
		return nil, err
	}
	if err := refuseForeignClaims(cfg); err != nil {
		return nil, err
	}
	s := &startup{cfg: cfg, options: taskOptions, id: containerID(cfg), runtime: taskOptions.Runtime}
	if s.runtime == "" {
		s.runtime = d.config.Runtime
	}
	if s.hostMemoryBytes, err = taskOptions.gpuHostMemoryBytes(&d.config); err != nil {
		return nil, err
	}
	s.network, err = newNetwork(cfg, taskOptions.NetworkMode)
	return s, err
}

// hold takes a lease that keeps what the start brings to containerd until the container itself does. It ends by itself
// if the plugin dies first.
func (d *Driver) hold(ctx context.Context, s *startup) (context.Context, func(), error) {
	leased, done, err := d.client.WithLease(ctx, leases.WithRandomID(),
		leases.WithExpiration(s.options.pullTimeout(&d.config)+time.Hour),
		leases.WithLabels(labels(s.cfg, s.options.Image)))
	if err != nil {
		return nil, nil, d.away(fmt.Errorf("take a lease in containerd: %w", err))
	}
	release := func() {
		ctx, cancel := d.call()
		defer cancel()
		if err := done(ctx); err != nil && !errdefs.IsNotFound(err) {
			d.logger.Warn("a lease in containerd stays until it expires", "container", s.id, "error", err)
		}
	}
	return leased, release, nil
}

// launch fetches the image, creates the container and starts it.
func (d *Driver) launch(ctx context.Context, s *startup) (*taskHandle, error) {
	i, err := d.ensureImage(ctx, s)
	if err != nil {
		return nil, err
	}
	container, err := d.createContainer(ctx, s, i)
	if err != nil {
		d.discard(s.id)
		return nil, err
	}
	task, err := d.startContainer(ctx, s, container)
	if err != nil {
		d.discard(s.id)
		return nil, err
	}
	shim, err := findShim(task.Pid())
	if err != nil {
		// Some runtimes have none to be found, and a process may have ended already.
		d.logger.Debug("no shim of its own can be asked about the task", "container", s.id, "error", err)
	}
	return newTaskHandle(d, s.cfg, taskState{
		ContainerID: s.id,
		PID:         task.Pid(),
		Shim:        shim,
		StopSignal:  i.config.StopSignal,
		StartedAt:   time.Now(),
	}), nil
}

func (d *Driver) createContainer(ctx context.Context, s *startup, i *image) (containerd.Container, error) {
	release, err := d.reserveHostIDs(ctx, s)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.handOverTaskDirs(s); err != nil {
		return nil, err
	}
	container, err := d.client.NewContainer(ctx, s.id,
		containerd.WithImageName(i.Name()),
		containerd.WithContainerLabels(labels(s.cfg, s.options.Image)),
		withHostIDsLabel(s.hostIDs),
		containerd.WithSnapshotter(d.config.Snapshotter),
		withSnapshot(s, i),
		containerd.WithRuntime(s.runtime, runtimeOptions(s.runtime)),
		containerd.WithNewSpec(d.specOptions(s, i)...))
	if err != nil {
		return nil, d.away(fmt.Errorf("create the container: %w", err))
	}
	return container, nil
}

func (d *Driver) startContainer(ctx context.Context, s *startup, container containerd.Container,
) (containerd.Task, error) {
	task, err := container.NewTask(ctx, logsTo(s.cfg))
	if err == nil {
		err = task.Start(ctx)
	}
	if err != nil {
		return nil, d.startError(s, err)
	}
	return task, nil
}

// startError says what is wrong when the runtime could not start the process. runc reports in text only.
func (d *Driver) startError(s *startup, err error) error {
	text := err.Error()
	switch {
	case isAway(err):
		return d.away(fmt.Errorf("start the container: %w", err))
	case !strings.Contains(text, "exec: "):
	case strings.Contains(text, "executable file not found"), strings.Contains(text, "no such file or directory"):
		return fmt.Errorf("start the container: the command is not in image %q; check the options command and "+
			"entrypoint, and the image's own: %w", s.options.Image, err)
	case strings.Contains(text, "permission denied"):
		return fmt.Errorf("start the container: the command in image %q is not executable for this user; check the "+
			"options command and entrypoint and the task's user: %w", s.options.Image, err)
	}
	return fmt.Errorf("start the container: %w", err)
}

// removeOlderLives removes containers of the same task of the same allocation that no task handle knows: what a plugin
// left that died in the midst of StartTask.
func (d *Driver) removeOlderLives(ctx context.Context, s *startup) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	older, err := d.client.Containers(ctx, fmt.Sprintf("labels.%q==%q,labels.%q==%q",
		labelAllocID, s.cfg.AllocID, labelTask, s.cfg.Name))
	if err != nil {
		return d.away(fmt.Errorf("look for containers of an earlier life of the task: %w", err))
	}
	for _, container := range older {
		if d.tasks.hasContainer(container.ID()) {
			continue
		}
		d.logger.Info("removing a container that an earlier life of the task left", "container", container.ID())
		if err := d.removeContainer(ctx, container.ID()); err != nil {
			return d.away(fmt.Errorf("remove container %s, which an earlier life of the task left: %w",
				container.ID(), err))
		}
	}
	return nil
}

// discard removes what a failed start left. The error that the user needs is the one of the start.
func (d *Driver) discard(id string) {
	ctx, cancel := d.call()
	defer cancel()
	if err := d.removeContainer(ctx, id); err != nil {
		d.logger.Warn("a failed start left something in containerd", "container", id, "error", err)
	}
}

// awaitContainerd makes sure that containerd answers, or says that it does not.
func (d *Driver) awaitContainerd() error {
	ctx, cancel := context.WithTimeout(d.ctx, 10*time.Second)
	defer cancel()
	serving, err := d.client.IsServing(ctx)
	if err == nil && !serving {
		err = errors.New("it is up but not serving")
	}
	if err != nil {
		return nstructs.NewRecoverableError(fmt.Errorf("containerd at %s does not answer: %w; check that it runs",
			d.config.ContainerdAddress, err), true)
	}
	return nil
}

// isAway says whether a call failed because containerd could not be reached, up to the call's deadline.
func isAway(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) || errors.Is(err, context.DeadlineExceeded)
}

// away marks an error as worth another try if containerd could not be reached.
func (d *Driver) away(err error) error {
	if isAway(err) {
		return nstructs.NewRecoverableError(fmt.Errorf("%w; containerd at %s went away, check that it runs",
			err, d.config.ContainerdAddress), true)
	}
	return err
}
