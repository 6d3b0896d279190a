// Package device is Nomad's device plugin for GPUs that are shared: it tells
// Nomad what there is of them, reserves it in the ledger, and reports what is
// used.
package device

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
)

const (
	// PluginName is the plugin's name in an agent's configuration.
	PluginName = "nomad-device-tranche"

	// vendor begins the device names of jobspecs, such as nvidia/slice.
	vendor = "nvidia"

	// reserveTimeout bounds one reservation, for which Nomad sets no limit.
	reserveTimeout = 90 * time.Second

	// nvmlTimeout bounds one question to the driver. The first one on an idle
	// node takes seconds per GPU, since the driver wakes them.
	nvmlTimeout = 30 * time.Second
)

// errNotConfigured is what a call before SetConfig gets, which Nomad never makes.
var errNotConfigured = errors.New(PluginName + " was called before it was configured")

// costs tells what a CUDA context costs on a GPU.
type costs interface {
	Cost(ctx context.Context, gpu contextcost.GPU) (uint64, error)
	// Known is Cost for where a context cannot be made to find out.
	Known(gpu contextcost.GPU) (uint64, bool)
}

// fixedCost is what the operator said that a context costs.
type fixedCost uint64

func (f fixedCost) Cost(context.Context, contextcost.GPU) (uint64, error) { return uint64(f), nil }
func (f fixedCost) Known(contextcost.GPU) (uint64, bool)                  { return uint64(f), true }

// Plugin implements Nomad's device plugin interface. A process may hold any
// number; each is configured on its own.
type Plugin struct {
	logger  hclog.Logger
	version string
	newNVML func(driverRoot string) nvml.Interface

	// node is what the configuration made of the plugin; nil before that.
	node atomic.Pointer[node]
	// configured counts calls of SetConfig.
	configured atomic.Int32
}

// node offers the GPUs of this node. It belongs to one configuration.
type node struct {
	*settings
	logger hclog.Logger
	nvml   nvml.Interface
	// partitioner is the same driver, where it can cut GPUs up.
	partitioner nvml.Partitioner
	ledger      *claim.Ledger
	costs       costs
	inventory   *inventory
	// reported is for what has no place in the inventory.
	reported reported
	// nvmlTimeout bounds one question to the driver.
	nvmlTimeout time.Duration
	// changed wakes the fingerprint when something else than its own period
	// noticed a change of the inventory.
	changed chan struct{}
	// modes are the ways to share a GPU.
	modes map[claim.Mode]mode
	// told is what was last written down of how the GPUs are shared. It belongs
	// to the fingerprint.
	told map[string]layout.GPU
	// published is what was last published of GPUs and claims; nil if nothing was
	// yet. It belongs to the fingerprint.
	published *health.Report
	strangers strangers
	known     known
	bypasses  bypasses
	// xids are errors that made GPUs unfit.
	xids xids
	// mps are the GPUs that are behind an MPS control daemon.
	mps *daemons
	// demand is what is known of GPUs whose MIG instances are made on demand.
	demand demand
	// measuring are GPUs that statistics wait for.
	measuring measuring
	now       func() time.Time
	after     func(time.Duration) <-chan time.Time
}

var _ ndevice.DevicePlugin = (*Plugin)(nil)

// New returns a plugin that waits for its configuration.
func New(logger hclog.Logger, version string) *Plugin {
	return &Plugin{
		logger:  logger.Named(PluginName),
		version: version,
		newNVML: func(driverRoot string) nvml.Interface { return nvml.New(driverRoot) },
	}
}

// PluginInfo implements base.BasePlugin.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type:              base.PluginTypeDevice,
		PluginApiVersions: []string{ndevice.ApiVersion010},
		PluginVersion:     p.version,
		Name:              PluginName,
	}, nil
}

// ConfigSchema implements base.BasePlugin.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) { return configSpec, nil }

// SetConfig implements base.BasePlugin. It starts nothing: Nomad also calls it
// just to see whether the configuration is good.
//
// It does so twice, in a process that it then ends, before an agent starts its
// work; an error ends the agent, too. The plugin that is to run gets one call,
// and after an error it would offer nothing. So what the GPUs of the node have to
// say to the configuration is an error the second time only: a GPU that has
// fallen off the bus by the time that the plugin is started again is to cost the
// node no other one.
func (p *Plugin) SetConfig(c *base.Config) error {
	var config Config
	if err := base.MsgPackDecode(c.PluginConfig, &config); err != nil {
		return fmt.Errorf("decode the plugin's configuration: %w", err)
	}
	s, err := config.parse()
	if err != nil {
		return err
	}
	configured, err := newNode(s, p.newNVML(s.driverRoot), p.logger)
	if err != nil {
		return err
	}
	if p.configured.Add(1) > 1 && s.enabled {
		if err := configured.checkGPUs(); err != nil {
			return err
		}
	}
	p.node.Store(configured)
	return nil
}

func newNode(s *settings, library nvml.Interface, logger hclog.Logger) (*node, error) {
	ledger, err := claim.Open(claim.Options{StateDir: s.stateDir, RunDir: s.runDir, Logger: logger.Named("ledger")})
	if err != nil {
		return nil, err
	}
	n := &node{
		settings:  s,
		logger:    logger,
		nvml:      library,
		ledger:    ledger,
		costs:     fixedCost(s.contextBytes),
		inventory: newInventory(s, logger),
		changed:   make(chan struct{}, 1),

		nvmlTimeout: nvmlTimeout,
		now:         time.Now,
		after:       time.After,
	}
	if s.contextBytes == 0 {
		n.costs = contextcost.NewMeter(contextcost.Options{
			DriverRoot: s.driverRoot,
			CacheFile:  filepath.Join(s.stateDir, "context-cost.json"),
			Logger:     logger,
		})
	}
	n.mps = newDaemons(n)
	n.modes = n.newModes()
	n.partitioner, _ = library.(nvml.Partitioner)
	return n, nil
}

// Fingerprint implements ndevice.DevicePlugin.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *ndevice.FingerprintResponse, error) {
	n := p.node.Load()
	if n == nil {
		return nil, errNotConfigured
	}
	if !n.enabled {
		return nil, ndevice.ErrPluginDisabled
	}
	out := make(chan *ndevice.FingerprintResponse)
	go n.fingerprint(ctx, out)
	return out, nil
}

// Reserve implements ndevice.DevicePlugin: it makes a claim on the devices and
// hands its claim token to the task. The environment is all that Nomad restores
// after a restart, so there is nothing else in the answer.
func (p *Plugin) Reserve(ids []string) (*ndevice.ContainerReservation, error) {
	n := p.node.Load()
	if n == nil {
		return nil, errNotConfigured
	}
	ctx, cancel := context.WithTimeout(context.Background(), reserveTimeout)
	defer cancel()
	reservation, err := n.reserve(ctx, ids)
	if err != nil {
		p.logger.Error("reservation refused", "devices", len(ids), "error", err)
		return nil, reserveError{err}
	}
	return reservation, nil
}

// Stats implements ndevice.DevicePlugin.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration) (<-chan *ndevice.StatsResponse, error) {
	n := p.node.Load()
	if n == nil {
		return nil, errNotConfigured
	}
	if interval <= 0 {
		return nil, fmt.Errorf("statistics every %s were asked for, which is no interval", interval)
	}
	out := make(chan *ndevice.StatsResponse)
	go n.stats(ctx, out, interval)
	return out, nil
}
