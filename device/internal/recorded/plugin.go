package recorded

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Plugin is a device plugin that replays a recording under the name of the recorded plugin. It publishes no statistics.
type Plugin struct {
	recording *Recording
	enabled   bool
	ignored   []string
}

var _ ndevice.DevicePlugin = (*Plugin)(nil)

// NewPlugin returns a plugin that replays a recording.
func NewPlugin(r *Recording) *Plugin { return &Plugin{recording: r, enabled: true} }

// PluginInfo implements base.BasePlugin.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDevice, PluginApiVersions: []string{ndevice.ApiVersion010},
		PluginVersion: p.recording.Version, Name: p.recording.Plugin,
	}, nil
}

// ConfigSchema implements base.BasePlugin. The options are nomad-device-nvidia's.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{
		"enabled":            hclspec.NewDefault(hclspec.NewAttr("enabled", "bool", false), hclspec.NewLiteral("true")),
		"ignored_gpu_ids":    hclspec.NewAttr("ignored_gpu_ids", "list(string)", false),
		"fingerprint_period": hclspec.NewAttr("fingerprint_period", "string", false),
	}), nil
}

// SetConfig implements base.BasePlugin. A recording has no period.
func (p *Plugin) SetConfig(c *base.Config) error {
	var config struct {
		Enabled bool     `codec:"enabled"`
		Ignored []string `codec:"ignored_gpu_ids"`
	}
	if len(c.PluginConfig) == 0 {
		return nil
	}
	err := base.MsgPackDecode(c.PluginConfig, &config)
	p.enabled, p.ignored = config.Enabled, config.Ignored
	return err
}

// Fingerprint implements ndevice.DevicePlugin.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *ndevice.FingerprintResponse, error) {
	if !p.enabled {
		return nil, ndevice.ErrPluginDisabled
	}
	var groups []*ndevice.DeviceGroup
	for _, g := range p.recording.Groups {
		group := g.deviceGroup()
		group.Devices = slices.DeleteFunc(group.Devices, func(d *ndevice.Device) bool { return slices.Contains(p.ignored, d.ID) })
		if len(group.Devices) > 0 {
			groups = append(groups, group)
		}
	}
	out := make(chan *ndevice.FingerprintResponse, 1)
	out <- ndevice.NewFingerprint(groups...)
	go func() {
		<-ctx.Done()
		close(out)
	}()
	return out, nil
}

// Reserve implements ndevice.DevicePlugin.
func (p *Plugin) Reserve(ids []string) (*ndevice.ContainerReservation, error) {
	for _, id := range ids {
		known := slices.ContainsFunc(p.recording.Groups, func(g Group) bool {
			return slices.ContainsFunc(g.Devices, func(d Device) bool { return d.ID == id })
		})
		if !known || slices.Contains(p.ignored, id) {
			return nil, fmt.Errorf("the recording has no device %q", id)
		}
	}
	return &ndevice.ContainerReservation{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(ids, ",")}}, nil
}

// Stats implements ndevice.DevicePlugin.
func (p *Plugin) Stats(ctx context.Context, _ time.Duration) (<-chan *ndevice.StatsResponse, error) {
	out := make(chan *ndevice.StatsResponse)
	go func() {
		<-ctx.Done()
		close(out)
	}()
	return out, nil
}
