package driver

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/ociruntime"
)

// next waits for the next fingerprint that is of this state.
func next(t *testing.T, fingerprints <-chan *drivers.Fingerprint, want drivers.HealthState) *drivers.Fingerprint {
	t.Helper()
	deadline := time.After(25 * time.Second)
	for {
		select {
		case f := <-fingerprints:
			must.NoError(t, f.Err)
			if f.Health == want {
				return f
			}
		case <-deadline:
			t.Fatalf("no fingerprint says %s", want)
		}
	}
}

func TestFingerprint_FollowsContainerd(t *testing.T) {
	d := newTestDriver(t)
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	fingerprints, err := d.Fingerprint(ctx)
	must.NoError(t, err)
	f := next(t, fingerprints, drivers.HealthStateHealthy)
	must.NotEq(t, "", f.Attributes["driver.containerd.version"].GoString())
	must.MapContainsKey(t, f.Attributes, "driver.containerd")
	runtimes, _ := f.Attributes["driver.containerd.runtimes"].GetString()
	must.Eq(t, ociruntime.Runc, runtimes)

	must.NoError(t, d.node.containerd.Kill())
	f = next(t, fingerprints, drivers.HealthStateUnhealthy)
	must.StrContains(t, f.HealthDescription, "check that it runs")

	must.NoError(t, d.node.containerd.Restart(d.ctx))
	next(t, fingerprints, drivers.HealthStateHealthy)
}

func TestFingerprint_NoContainerd(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	config.ContainerdAddress = filepath.Join(n.dir, "none.sock")
	d := newTestDriverWith(t, n, config)
	fingerprints, err := d.Fingerprint(d.ctx)
	must.NoError(t, err)
	f := next(t, fingerprints, drivers.HealthStateUndetected)
	must.StrContains(t, f.HealthDescription, "containerd_address")

	_, _, err = d.StartTask(d.failing())
	must.ErrorContains(t, err, "does not answer")
}

func TestFingerprint_GraceCoversARestart(t *testing.T) {
	d := newTestDriver(t)
	d.driver.restartGrace = time.Minute
	fingerprints, err := d.Fingerprint(d.ctx)
	must.NoError(t, err)
	next(t, fingerprints, drivers.HealthStateHealthy)
	must.NoError(t, d.node.containerd.Restart(d.ctx))
	select {
	case f := <-fingerprints:
		must.Eq(t, drivers.HealthStateHealthy, f.Health)
	case <-time.After(fingerprintPeriod - fingerprintPause):
		t.Fatal("the restart was not noticed")
	}
}

// A containerd that answers and cannot run tasks is asked once a period, and again as soon as it has restarted.
func TestFingerprint_AsksAnUnhealthyContainerdOnceAPeriod(t *testing.T) {
	d := withSnapshotter(t, requireNode(t), "none-such")
	fingerprints, err := d.Fingerprint(d.ctx)
	must.NoError(t, err)
	next(t, fingerprints, drivers.HealthStateUnhealthy)
	count := 0
	for window := time.After(2 * time.Second); window != nil; {
		select {
		case f := <-fingerprints:
			must.NoError(t, f.Err)
			must.Eq(t, drivers.HealthStateUnhealthy, f.Health)
			count++
		case <-window:
			window = nil
		}
	}
	must.LessEq(t, 1, count)

	must.NoError(t, d.node.containerd.Restart(d.ctx))
	next(t, fingerprints, drivers.HealthStateUnhealthy)
}
