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
	// fingerprintPeriod is how often the fingerprint is taken again when nothing happens.
	fingerprintPeriod = 30 * time.Second
	// restartGrace is how long containerd may be unavailable before the driver is reported unhealthy: a restart takes less.
	restartGrace = 5 * time.Second
	// fingerprintPause is the pause before an unavailable containerd is queried again: an error may come at once.
	fingerprintPause = time.Second
)

// Fingerprint reports whether containerd answers, as soon as that changes.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	fingerprints := make(chan *drivers.Fingerprint)
	if d.client != nil {
		// An agent listens that uses the driver. Nomad also starts the plugin to have its configuration checked.
		d.images.Tend()
	}
	go func() {
		defer close(fingerprints)
		defer d.agents.NoteListener()()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(d.ctx, cancel)()
		for ctx.Err() == nil {
			f, answered := d.fingerprint(ctx)
			select {
			case fingerprints <- f:
			case <-ctx.Done():
				return
			}
			d.awaitChange(ctx, answered)
		}
	}()
	return fingerprints, nil
}

// fingerprint queries containerd's version, and reports whether it answered.
func (d *Driver) fingerprint(ctx context.Context) (f *drivers.Fingerprint, answered bool) {
	if d.client == nil {
		return unwell(drivers.HealthStateUndetected, "the plugin has not been configured"), false
	}
	ctx, cancel := context.WithTimeout(d.client.Namespaced(ctx), d.restartGrace)
	defer cancel()
	version, err := d.client.Version(ctx)
	address := d.config.ContainerdAddress
	if err == nil {
		if missing := d.client.CheckSnapshotter(ctx); missing != nil {
			return unwell(drivers.HealthStateUnhealthy, missing.Error()), true
		}
		return &drivers.Fingerprint{
			Health:            drivers.HealthStateHealthy,
			HealthDescription: drivers.DriverHealthy,
			Attributes: map[string]*structs.Attribute{
				"driver." + PluginName:                  structs.NewBoolAttribute(true),
				"driver." + PluginName + ".version":     structs.NewStringAttribute(version.Version),
				"driver." + PluginName + ".runtime":     structs.NewStringAttribute(d.config.Runtime),
				"driver." + PluginName + ".runtimes":    structs.NewStringAttribute(strings.Join(d.config.Runtimes(), ",")),
				"driver." + PluginName + ".snapshotter": structs.NewStringAttribute(d.config.Snapshotter),
			},
		}, true
	}
	if _, statErr := os.Stat(address); os.IsNotExist(statErr) {
		return unwell(drivers.HealthStateUndetected, fmt.Sprintf("there is no containerd at %s: install and start it, "+
			"or set the plugin's containerd_address", address)), false
	}
	return unwell(drivers.HealthStateUnhealthy, fmt.Sprintf("containerd at %s does not answer (%v): check that it "+
		"runs and that this plugin runs as root", address, err)), false
}

func unwell(state drivers.HealthState, why string) *drivers.Fingerprint {
	return &drivers.Fingerprint{Health: state, HealthDescription: why}
}

// awaitChange waits until the connection to containerd breaks, or comes back, or the period is over. What a containerd
// that answers offers, its snapshotters among it, changes only when it starts again.
func (d *Driver) awaitChange(ctx context.Context, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, fingerprintPeriod)
	defer cancel()
	switch {
	case d.client == nil:
		<-ctx.Done()
	case answered:
		// The call that follows waits for restartGrace before it gives containerd up.
		if conn, ok := d.client.Conn().(*grpc.ClientConn); ok {
			conn.WaitForStateChange(ctx, connectivity.Ready)
		}
	case d.client.Pause(fingerprintPause):
		// Returns when containerd answers.
		_, _ = d.client.IsServing(ctx)
	}
}
