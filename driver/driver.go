// Package driver is the Nomad task driver that runs tasks as containers in containerd.
//
// Its files are Nomad's calls: start.go starts a task, stop.go ends it, recover.go takes it over after a restart of the
// plugin, and tasks.go has the calls about a running task. The packages below this one do the work.
package driver

import (
	"context"
	"fmt"
	"runtime"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/log"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"golang.org/x/sync/semaphore"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/driver/reconcile"
	"github.com/tranche-gpu/tranche/driver/removal"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/driver/userns"
	"github.com/tranche-gpu/tranche/internal/printable"
	"github.com/tranche-gpu/tranche/internal/version"
)

// PluginName is the driver's name in a jobspec.
const PluginName = naming.PluginName

// Driver is the task driver. Make one with New.
type Driver struct {
	*eventer.Eventer

	ctx    context.Context
	cancel context.CancelFunc
	logger hclog.Logger

	// Set by SetConfig, and not changed afterwards.
	config spec.Config
	client *client.Client
	claims *gpu.Claims
	// runDir is the directory of what lives as long as the machine runs, such as regions.
	runDir string
	// ticksPerCore is the capacity of one core in MHz, by which Nomad accounts CPU, and totalTicks that of all of them;
	// 0 where unknown.
	ticksPerCore, totalTicks float64

	plugin  *task.Plugin
	tasks   *task.Store
	images  *image.Store
	mounts  *storage.Storage
	hostIDs *userns.Allocator
	removal *removal.Remover
	// starts are the starts in progress.
	starts     starts
	agents     reconcile.Agents
	reconciler *reconcile.Reconciler
	health     *gpu.Health
	// began is when this plugin process started; startPatience is how long a start waits for containerd, and restartGrace a
	// fingerprint.
	began                       time.Time
	startPatience, restartGrace time.Duration
	// failpoints is called at each failpoint, in tests alone.
	failpoints func(failpoint.Point)
	// creations limits how many containers are created at the same time.
	creations *semaphore.Weighted
	runtimes  ociruntime.Versions
}

var (
	_ drivers.DriverPlugin            = (*Driver)(nil)
	_ drivers.ExecTaskStreamingDriver = (*Driver)(nil)
)

// New returns a driver that ends with ctx. It does nothing before SetConfig.
func New(ctx context.Context, logger hclog.Logger) *Driver {
	ctx, cancel := context.WithCancel(ctx)
	logger = logger.Named(PluginName)
	return &Driver{
		Eventer:       eventer.NewEventer(ctx, logger),
		ctx:           ctx,
		cancel:        cancel,
		logger:        logger,
		tasks:         task.NewStore(),
		began:         time.Now(),
		startPatience: startPatience,
		restartGrace:  restartGrace,
		creations:     semaphore.NewWeighted(int64(creationsPerCPU * runtime.NumCPU())),
	}
}

// PluginInfo says what plugin this is.
func (d *Driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDriver,
		PluginApiVersions: []string{drivers.ApiVersion010},
		PluginVersion:     version.Version,
		Name:              PluginName,
	}, nil
}

// ConfigSchema is the schema of the plugin's block in the agent's configuration.
func (d *Driver) ConfigSchema() (*hclspec.Spec, error) { return spec.ConfigSpec, nil }

// TaskConfigSchema is the schema of a task's config block.
func (d *Driver) TaskConfigSchema() (*hclspec.Spec, error) { return spec.TaskConfigSpec, nil }

// Capabilities says what the driver can do.
func (d *Driver) Capabilities() (*drivers.Capabilities, error) {
	return &drivers.Capabilities{
		SendSignals: true,
		Exec:        true,
		FSIsolation: fsisolation.Image,
		NetIsolationModes: []drivers.NetIsolationMode{
			drivers.NetIsolationModeHost,
			drivers.NetIsolationModeGroup,
			drivers.NetIsolationModeNone,
		},
		MountConfigs:         drivers.MountConfigSupportAll,
		DisableLogCollection: d.config.DisableLogCollection,
		DynamicWorkloadUsers: d.config.DynamicWorkloadUsers,
	}, nil
}

// SetConfig takes the plugin's configuration and connects to containerd, which need not run yet.
func (d *Driver) SetConfig(c *base.Config) error {
	if d.client != nil {
		// Nomad configures a plugin once per process; a change of configuration starts it again.
		return nil
	}
	var config spec.Config
	if len(c.PluginConfig) != 0 {
		var err error
		if config, err = spec.DecodeConfig(c.PluginConfig); err != nil {
			return err
		}
	}
	if err := config.Check(); err != nil {
		return err
	}
	if compute := c.AgentConfig.Compute(); compute.NumCores > 0 {
		d.totalTicks = float64(compute.TotalCompute)
		d.ticksPerCore = d.totalTicks / float64(compute.NumCores)
	}
	return d.connect(config)
}

// connect prepares the client and starts to listen for events.
func (d *Driver) connect(config spec.Config) error {
	// containerd's client logs every registry host it tries; an operator needs the warnings.
	_ = log.SetLevel(log.WarnLevel.String())
	blobs, err := image.NewMetadataCache()
	if err != nil {
		return err
	}
	connected, err := client.New(d.ctx, client.Config{
		Address: config.ContainerdAddress, Namespace: config.Namespace, Snapshotter: config.Snapshotter,
	}, containerd.WithServices(containerd.WithContentStore(blobs)))
	if err != nil {
		return fmt.Errorf("plugin option containerd_address = %q: %w", config.ContainerdAddress, err)
	}
	blobs.Store = proxy.NewContentStore(connected.Conn())
	d.config, d.client = config, connected
	runtimeConfig := config.RuntimeConfig()
	d.runDir = runtimeConfig.RunDir
	d.claims = gpu.New(runtimeConfig, d.logger)
	d.removal = &removal.Remover{Client: d.client, Logger: d.logger, KeepEnded: !config.GC.Container, Reach: d.reach}
	d.plugin = d.newPlugin()
	d.health = gpu.NewHealth(gpu.HealthConfig{Client: d.client, Logger: d.logger, Claims: d.claims, Running: d.tasks.Running,
		Notify: d.notify, Kill: d.kill})
	d.reconciler = d.newReconciler()
	d.images = d.newImages()
	d.hostIDs = userns.NewAllocator(d.client)
	d.mounts = d.newStorage()
	d.mounts.Sweep()
	d.client.Go(func() { d.plugin.WatchOOM(d.tasks) })
	d.client.Go(func() { d.plugin.WatchLogs(d.tasks) })
	if config.GC.DanglingContainers.Enabled {
		d.client.Go(d.reconciler.Run)
	}
	return nil
}

// newImages returns the store of images. d.client is set.
func (d *Driver) newImages() *image.Store {
	config := d.config.ImageConfig()
	config.Client, config.Logger, config.Notify = d.client, d.logger, d.notify
	return image.NewStore(config)
}

// newStorage returns what prepares mounts. d.client and d.runDir are set.
func (d *Driver) newStorage() *storage.Storage {
	return storage.New(storage.Config{Policy: d.config.StoragePolicy(), Client: d.client, Logger: d.logger,
		VolumeDir: d.config.VolumesRoot(), RunDir: d.runDir})
}

// Shutdown ends what the driver does. Containers are left running.
func (d *Driver) Shutdown() {
	d.cancel()
	if d.client != nil {
		d.client.Close()
	}
}

// notify emits a task event, which the user sees in `nomad alloc status`. Names in it are of processes and images, which choose them.
func (d *Driver) notify(cfg *drivers.TaskConfig, annotations map[string]string, format string, args ...any) {
	err := d.EmitEvent(&drivers.TaskEvent{
		TaskID:      cfg.ID,
		TaskName:    cfg.Name,
		AllocID:     cfg.AllocID,
		Timestamp:   time.Now(),
		Message:     printable.Text(fmt.Sprintf(format, args...)),
		Annotations: annotations,
	})
	if err != nil {
		d.logger.Warn("a task event was lost", "task_id", cfg.ID, "error", err)
	}
}

// reach calls what a test has set for failpoints; nothing otherwise.
func (d *Driver) reach(p failpoint.Point) {
	if d.failpoints != nil {
		d.failpoints(p)
	}
}
