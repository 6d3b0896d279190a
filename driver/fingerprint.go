package driver

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

const (
	// fingerprintPeriod is how often the fingerprint is taken anew when nothing happens.
	fingerprintPeriod = 30 * time.Second
	// restartGrace is how long containerd may be away before the driver is reported unhealthy: a restart takes less.
	restartGrace = 5 * time.Second
)

// Fingerprint tells Nomad whether containerd answers, as soon as that changes.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	fingerprints := make(chan *drivers.Fingerprint)
	go func() {
		defer close(fingerprints)
		defer d.agents.listen()()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.ctx, cancel)()
		for ctx.Err() == nil {
			f := d.fingerprint(ctx)
			select {
			case fingerprints <- f:
			case <-ctx.Done():
				return
			}
			d.awaitChange(ctx, f.Health == drivers.HealthStateHealthy)
		}
	}()
	return fingerprints, nil
}

// fingerprint asks containerd for its version.
func (d *Driver) fingerprint(ctx context.Context) *drivers.Fingerprint {
	if d.client == nil {
		return unwell(drivers.HealthStateUndetected, "the plugin has not been configured")
	}
	ctx, cancel := context.WithTimeout(d.namespaced(ctx), restartGrace)
	defer cancel()
	version, err := d.client.Version(ctx)
	address := d.config.ContainerdAddress
	if err == nil {
		return &drivers.Fingerprint{
			Health:            drivers.HealthStateHealthy,
			HealthDescription: drivers.DriverHealthy,
			Attributes: map[string]*structs.Attribute{
				"driver." + PluginName:                  structs.NewBoolAttribute(true),
				"driver." + PluginName + ".version":     structs.NewStringAttribute(version.Version),
				"driver." + PluginName + ".runtime":     structs.NewStringAttribute(d.config.Runtime),
				"driver." + PluginName + ".runtimes":    structs.NewStringAttribute(strings.Join(d.config.runtimes(), ",")),
				"driver." + PluginName + ".snapshotter": structs.NewStringAttribute(d.config.Snapshotter),
			},
		}
	}
	if _, statErr := os.Stat(address); os.IsNotExist(statErr) {
		return unwell(drivers.HealthStateUndetected, fmt.Sprintf("there is no containerd at %s: install and start it, "+
			"or set the plugin's containerd_address", address))
	}
	return unwell(drivers.HealthStateUnhealthy, fmt.Sprintf("containerd at %s does not answer (%v): check that it "+
		"runs and that this plugin runs as root", address, err))
}

func unwell(state drivers.HealthState, why string) *drivers.Fingerprint {
	return &drivers.Fingerprint{Health: state, HealthDescription: why}
}

// awaitChange waits until the connection to containerd breaks, or comes back, or the period is over.
func (d *Driver) awaitChange(ctx context.Context, healthy bool) {
	ctx, cancel := context.WithTimeout(ctx, fingerprintPeriod)
	defer cancel()
	switch {
	case d.client == nil:
		<-ctx.Done()
	case healthy:
		// The call that follows waits for restartGrace before it gives containerd up.
		if conn, ok := d.client.Conn().(*grpc.ClientConn); ok {
			conn.WaitForStateChange(ctx, connectivity.Ready)
		}
	default:
		// Returns when containerd answers.
		_, _ = d.client.IsServing(ctx)
	}
}
