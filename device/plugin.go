// Package device is Nomad's device plugin for shared GPUs: it publishes the node's GPUs to Nomad, reserves them in the
// ledger, and reports statistics. It never starts or changes a container.
package device

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/tranche-gpu/tranche/device/nvml"
)

const (
	// PluginName is the plugin's name in an agent's configuration.
	PluginName = "nomad-device-tranche"

	// reserveTimeout bounds one reservation, for which Nomad sets no limit.
	reserveTimeout = 90 * time.Second
)

// Plugin implements Nomad's device plugin interface. A process may have several, each with its own configuration.
type Plugin struct {
	logger  hclog.Logger
	version string
	newNVML func(driverRoot string) nvml.Interface

	// node belongs to the current configuration. It is nil before SetConfig, which Nomad calls first.
	node atomic.Pointer[node]
	// configured counts calls of SetConfig.
	configured atomic.Int32
}

var _ ndevice.DevicePlugin = (*Plugin)(nil)

// New returns a plugin that is not configured yet.
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

// SetConfig implements base.BasePlugin. It starts nothing: Nomad also calls it only to validate the configuration.
//
// Before an agent starts its work, it does so twice, in a process that it then ends; an error ends the agent, too. The
// plugin that is to run gets one call, and after an error it would offer nothing. So whether the configuration fits the
// GPUs is checked in the second call only: a GPU that has fallen off the bus when the plugin is started again must not
// cost the node all others.
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
		if err := configured.check.run(); err != nil {
			return err
		}
	}
	p.node.Store(configured)
	return nil
}

// Fingerprint implements ndevice.DevicePlugin.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *ndevice.FingerprintResponse, error) {
	n := p.node.Load()
	if !n.enabled {
		return nil, ndevice.ErrPluginDisabled
	}
	out := make(chan *ndevice.FingerprintResponse)
	go n.fingerprint(ctx, out)
	return out, nil
}

// Reserve implements ndevice.DevicePlugin: it makes a claim on the devices and gives its token to the task. The answer has
// only environment variables, because Nomad restores nothing else after a restart.
func (p *Plugin) Reserve(ids []string) (*ndevice.ContainerReservation, error) {
	n := p.node.Load()
	ctx, cancel := context.WithTimeout(context.Background(), reserveTimeout)
	defer cancel()
	reservation, err := n.reservations.reserve(ctx, ids)
	if err != nil {
		p.logger.Error("reservation failed", "devices", len(ids), "error", err)
		return nil, reserveError{err}
	}
	return reservation, nil
}

// Stats implements ndevice.DevicePlugin.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration) (<-chan *ndevice.StatsResponse, error) {
	n := p.node.Load()
	if interval <= 0 {
		return nil, fmt.Errorf("the interval of statistics must be positive, got %s", interval)
	}
	out := make(chan *ndevice.StatsResponse)
	go n.stats.stream(ctx, out, interval)
	return out, nil
}
