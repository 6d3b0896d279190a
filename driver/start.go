package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/driver/userns"
)

// startPatience is how long containerd may be unavailable during a start: longer than a restart or an upgrade takes.
const startPatience = time.Minute

// startup is one StartTask on its way.
type startup struct {
	cfg     *drivers.TaskConfig
	options *spec.TaskConfig
	id      string // of the container
	runtime ociruntime.Runtime
	// init is the host's program for the option init; empty for none.
	init    string
	network *network.Network
	storage *storage.Prepared
	// gpuOptions are what the task requests of its GPUs.
	gpuOptions gpu.Options
	gpu        *gpu.Prepared
	// hostIDs are the host's IDs that the container has; nil where it has no user namespace of its own. handOver gives
	// a directory, with what is in it, to them; nil likewise.
	hostIDs  *userns.Range
	handOver func(dir string) error
	ioOwner  userns.IOOwner
}

// StartTask starts the task's container. When it fails, nothing of the container is left.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (_ *drivers.TaskHandle, _ *drivers.DriverNetwork, err error) {
	d.agents.NoteTask(cfg)
	ctx, done, err := d.starts.begin(d.client.Context(), startKey(cfg.AllocID, cfg.Name))
	if err != nil {
		return nil, nil, err
	}
	defer done()
	if _, ok := d.tasks.Get(cfg.ID); ok {
		return nil, nil, fmt.Errorf("task %s has been started already", cfg.ID)
	}
	defer func() {
		if err != nil {
			d.claims.GiveUp(ctx, cfg)
		}
	}()
	if err := d.claims.Begin(ctx, cfg); err != nil {
		return nil, nil, err
	}
	if err := d.client.CheckServing(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := d.client.UntilUnavailable(ctx, d.startPatience)
	defer cancel()
	defer func() { err = d.addCause(ctx, err) }()
	s, err := d.prepare(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	// First, since one of them could still hold the task's claim.
	releaseLogs, err := d.removeOlderContainers(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	defer releaseLogs()
	d.reach(failpoint.StartOlderGone)
	if s.gpu, err = d.claims.Prepare(ctx, cfg, s.id, s.gpuOptions); err != nil {
		return nil, nil, err
	}
	defer d.claims.KeepFresh(s.gpu)()
	d.reach(failpoint.StartClaimsPrepared)
	ctx, release, err := d.hold(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	d.reach(failpoint.StartLeaseTaken)
	h, err := d.launch(ctx, s)
	if err != nil {
		task.EndStderr(cfg)
		return nil, nil, err
	}
	handle, err := h.NomadHandle()
	if err != nil {
		d.removal.Discard(s.id)
		return nil, nil, err
	}
	d.adopt(h, false)
	d.reach(failpoint.StartAdopted)
	d.notifyStarted(h, s)
	for _, line := range slices.Concat(s.gpu.Describe(), d.claims.Missing(ctx, s.gpu), gpu.MisspelledVariables(cfg)) {
		d.notify(cfg, nil, "%s", line)
	}
	return handle, nil, nil
}

// prepare checks everything that can be checked before the first call to containerd. It changes nothing.
func (d *Driver) prepare(ctx context.Context, cfg *drivers.TaskConfig) (*startup, error) {
	taskOptions, err := spec.DecodeTask(cfg, &d.config)
	if err != nil {
		return nil, err
	}
	if err := gpu.CheckEnv(cfg); err != nil {
		return nil, err
	}
	if err := taskOptions.StorageOptions().CheckTask(cfg, d.config.StoragePolicy()); err != nil {
		return nil, err
	}
	s := &startup{cfg: cfg, options: taskOptions, id: naming.ContainerID(cfg)}
	if s.runtime, err = taskOptions.OCIRuntime(&d.config); err == nil && taskOptions.Userns == userns.Auto {
		err = d.runtimes.CheckUserns(ctx, s.runtime)
	}
	if err != nil {
		return nil, err
	}
	if s.init, err = taskOptions.InitProgram(&d.config); err != nil {
		return nil, err
	}
	if s.gpuOptions, err = taskOptions.GPUOptions(&d.config); err != nil {
		return nil, err
	}
	s.network, err = network.New(cfg, taskOptions.NetworkOptions())
	return s, err
}

// hold takes a lease that keeps what the start brings to containerd, and the image that it finds there, until the
// container itself does. While there is one that names an image, no collector removes that image. It ends by itself
// if the plugin dies first. It has the container's name: if there is one already, the plugin died in an earlier attempt
// at this very start, which may also have left a snapshot.
func (d *Driver) hold(ctx context.Context, s *startup) (context.Context, func(), error) {
	opts := []leases.Opt{
		leases.WithID(s.id),
		leases.WithExpiration(s.options.ImageOptions(&d.config).PullTimeout + time.Hour),
		leases.WithLabels(naming.Labels(s.cfg, s.options.Image)),
		leases.WithLabel(naming.Owner, d.client.Owner),
	}
	leased, _, err := d.client.WithLease(ctx, opts...)
	if errdefs.IsAlreadyExists(err) {
		if err = d.removal.Remove(ctx, s.id); err == nil {
			leased, _, err = d.client.WithLease(ctx, opts...)
		}
	}
	if err != nil {
		return ctx, nil, d.client.Recoverable(fmt.Errorf("take a lease in containerd: %w", err))
	}
	release := func() {
		if _, err := d.removal.OrLater(s.id, d.removal.RemoveLease); err != nil {
			d.logger.Warn("a lease in containerd stays until it expires", "container", s.id, "error", err)
		}
		d.reach(failpoint.StartLeaseGivenBack)
	}
	return leased, release, nil
}

// launch fetches the image, creates the container and starts it.
func (d *Driver) launch(ctx context.Context, s *startup) (*task.Handle, error) {
	defer d.images.NoteUse(s.options.Image)
	i, err := d.images.Ensure(ctx, &image.Request{Options: s.options.ImageOptions(&d.config), Task: s.cfg})
	if err != nil {
		return nil, err
	}
	d.reach(failpoint.StartImageReady)
	releaseIDs, err := d.allocateHostIDs(ctx, s)
	if err != nil {
		return nil, err
	}
	defer releaseIDs()
	if err := s.network.WriteFiles(); err != nil {
		return nil, err
	}
	s.storage, err = d.mounts.Prepare(ctx, &storage.Request{Task: s.cfg, ContainerID: s.id,
		Options: *s.options.StorageOptions(), Image: i, HandOver: s.handOver})
	if err != nil {
		return nil, err
	}
	defer s.storage.Release()
	d.reach(failpoint.StartStorageReady)
	d.notifyCreating(s, i)
	d.notifyUnmetRequests(s, i)
	release, err := acquireFor(ctx, d.creations, creationLimit)
	if err != nil {
		return nil, err
	}
	defer release()
	container, err := d.createContainer(ctx, s, i)
	if err != nil {
		d.removal.Discard(s.id)
		return nil, err
	}
	d.reach(failpoint.StartContainerCreated)
	state, err := d.startContainer(ctx, s, container)
	if err != nil {
		d.removal.Discard(s.id)
		return nil, err
	}
	d.reach(failpoint.StartTaskStarted)
	state.StopSignal = i.Process.StopSignal
	return task.New(d.plugin, s.cfg, state), nil
}

// removeOlderContainers removes containers of the same task of the same allocation: those of a plugin process that died
// during StartTask, and those whose handle an agent lost that died before it had stored it. Nomad runs a task of an
// allocation once at a time, so with a new start it has given up all others. The function that it returns releases the
// task's logs.
func (d *Driver) removeOlderContainers(ctx context.Context, s *startup) (releaseLogs func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	older, err := d.client.Containers(ctx, naming.Filter(naming.AllocID, s.cfg.AllocID, naming.Task, s.cfg.Name)+
		fmt.Sprintf(",labels.%q!=%q", naming.Kept, naming.IsKept))
	if err != nil {
		return nil, d.client.Recoverable(fmt.Errorf("look for containers of an earlier run of the task: %w", err))
	}
	if len(older) == 0 {
		return func() {}, nil
	}
	releaseLogs = task.KeepLogsOpen(s.cfg, s.options.TTY)
	for _, container := range older {
		d.logger.Info("removing a container that an earlier run of the task left", "container", container.ID())
		if err := d.removeOlder(ctx, container.ID()); err != nil {
			releaseLogs()
			return nil, recoverable.Error(fmt.Errorf("remove container %s, which an earlier run of the task "+
				"left: %w", container.ID(), err))
		}
	}
	return releaseLogs, nil
}

// removeOlder removes a container of an earlier run, with its handle if there is one.
func (d *Driver) removeOlder(ctx context.Context, id string) error {
	if h, ok := d.tasks.ByContainer(id); ok {
		return d.DestroyTask(h.Config.ID, true)
	}
	if err := d.removal.EndCreation(ctx, id); err != nil {
		return err
	}
	return d.removal.Remove(ctx, id)
}

// addCause adds to the error of a start its cause, where the context or the kernel knows more than the error says.
func (d *Driver) addCause(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, client.ErrUnavailable) && errors.As(err, new(client.UnavailableError)):
		return recoverable.Error(err)
	case errors.Is(cause, client.ErrUnavailable):
		return recoverable.Error(fmt.Errorf("%w; containerd at %s has not answered for %s, check that it runs",
			err, d.config.ContainerdAddress, d.startPatience))
	case errors.Is(cause, errSuperseded):
		return fmt.Errorf("%w: %w", cause, err)
	case client.IsDiskFull(err):
		return recoverable.Error(fmt.Errorf("%w; a disk of this node is full: make room on the file systems of "+
			"containerd's root and state directories (mostly /var/lib/containerd and /run/containerd) and of Nomad's "+
			"data directory", err))
	}
	return err
}
