package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// stubborn returns a task that writes an ID of this run to its log and to the host, and ignores its stop signal.
func (d *testDriver) stubborn(edit ...func(*spec.TaskConfig)) *drivers.TaskConfig {
	d.t.Helper()
	return d.task(`
		trap '' TERM
		read -r id </proc/sys/kernel/random/uuid
		echo "life $id"
		echo $id >/local/life
		while :; do sleep 1; done`, edit...)
}

// runsOnce asserts that the task runs in one container, that its logs are read, and that its start has left nothing else.
func (d *testDriver) runsOnce(cfg *drivers.TaskConfig) {
	d.t.Helper()
	var id string
	eventually(d.t, "the task's first words", func() bool {
		data, _ := os.ReadFile(filepath.Join(cfg.TaskDir().LocalDir, "life"))
		id = strings.TrimSpace(string(data))
		return id != ""
	})
	d.stdout(cfg, "life "+id)
	for _, list := range []string{"container", "task", "snapshot", "bundle"} {
		must.Len(d.t, 1, slices.DeleteFunc(d.traces(), func(trace string) bool {
			return !strings.HasPrefix(trace, list+" ") || strings.Contains(trace, "/root/")
		}), must.Sprintf("there is not one %s", list))
	}
	for _, trace := range d.traces() {
		must.StrNotContains(d.t, trace, "lease ")
		must.StrNotContains(d.t, trace, "ingest ")
	}
}

// killedNode is a node with a GPU, in a containerd namespace of its own.
func killedNode(t *testing.T) (*testNode, spec.Config, testClaims) {
	t.Helper()
	n := requireNode(t)
	config := n.config()
	config.Namespace = "nomad-killed"
	return n, config, newTestClaims(t, &config)
}

// free asserts that no container holds the claim, nor one that is gone but whose end nobody noticed.
func (c testClaims) free(t *testing.T) {
	t.Helper()
	_, err := c.Sweep(t.Context())
	must.NoError(t, err)
	must.Eq(t, "", c.holder(t))
}

func TestKilledInStartTask_StartedAgain(t *testing.T) {
	n, config, claims := killedNode(t)
	for _, p := range failpoint.Start {
		t.Run(string(p), func(t *testing.T) {
			d := newTestDriverWith(t, n, config)
			cfg := d.stubborn(func(c *spec.TaskConfig) { c.NetworkMode = network.None })
			claims.reserve(t, cfg)
			must.Nil(t, d.die(config, cfg, p).handle)
			_ = os.Remove(filepath.Join(cfg.TaskDir().LocalDir, "life"))

			// Nomad starts the plugin again, and the same task.
			next := newTestDriverWith(t, n, config)
			next.start(cfg)
			next.runsOnce(cfg)
			must.Eq(t, naming.ContainerID(cfg), claims.holder(t))
			must.NoError(t, next.StopTask(cfg.ID, 50*time.Millisecond, "SIGTERM"))
			must.NoError(t, next.DestroyTask(cfg.ID, false))
			next.noTraces(cfg)
			claims.free(t)
		})
	}
}

func TestKilledInStartTask_NotStartedAgain(t *testing.T) {
	n, config, claims := killedNode(t)
	for _, p := range needs.Sample(failpoint.Start, failpoint.StartClaimsPrepared, failpoint.StartSnapshotMade,
		failpoint.StartTaskCreated, failpoint.StartAdopted) {
		t.Run(string(p), func(t *testing.T) {
			d := newTestDriverWith(t, n, config)
			cfg := d.stubborn(func(c *spec.TaskConfig) { c.NetworkMode = network.None })
			claims.reserve(t, cfg)
			d.die(config, cfg, p)

			next := newTestDriverWith(t, n, config)
			removed, err := next.driver.reconciler.Once(next.ctx, 0)
			must.NoError(t, err)
			must.SliceEmpty(t, removed, must.Sprint("it may be another agent's"))
			next.driver.agents.NoteTask(cfg)
			removed, err = next.driver.reconciler.Once(next.ctx, 0)
			must.NoError(t, err)
			must.Eq(t, p == failpoint.StartOlderGone || p == failpoint.StartClaimsPrepared, len(removed) == 0)
			next.noTraces(cfg)
			claims.free(t)
		})
	}
}

// Nomad has the handle, with which the next plugin process recovers the task.
func TestKilledInStopTask_Recovered(t *testing.T) {
	n, config, claims := killedNode(t)
	for _, p := range append(slices.Clone(failpoint.Stop), failpoint.Destroy...) {
		t.Run(string(p), func(t *testing.T) {
			d := newTestDriverWith(t, n, config)
			cfg := d.stubborn()
			claims.reserve(t, cfg)
			left := d.die(config, cfg, p)
			must.NotNil(t, left.handle)

			next := newTestDriverWith(t, n, config)
			if err := next.RecoverTask(left.handle); slices.Contains(failpoint.Stop, p) {
				must.NoError(t, err)
				must.NoError(t, next.StopTask(cfg.ID, 50*time.Millisecond, "SIGTERM"))
				must.Eq(t, 137, next.wait(cfg).ExitCode)
				must.NoError(t, next.DestroyTask(cfg.ID, false))
			} else {
				must.ErrorContains(t, err, "no process for container")
			}
			next.noTraces(cfg)
			claims.free(t)
		})
	}
}

// Nomad does not come back to the task: the allocation was removed meanwhile.
func TestKilledInStopTask_NotRecovered(t *testing.T) {
	n, config, claims := killedNode(t)
	for _, p := range append(slices.Clone(failpoint.Stop), failpoint.Destroy...) {
		t.Run(string(p), func(t *testing.T) {
			d := newTestDriverWith(t, n, config)
			cfg := d.stubborn()
			claims.reserve(t, cfg)
			d.die(config, cfg, p)

			next := newTestDriverWith(t, n, config)
			next.driver.agents.NoteTask(cfg)
			_, err := next.driver.reconciler.Once(next.ctx, 0)
			must.NoError(t, err)
			next.noTraces(cfg)
			claims.free(t)
		})
	}
}

// The plugin dies in the midst of a call to containerd, which it cannot finish and containerd may or may not.
func TestKilledInTheMidstOfACall(t *testing.T) {
	n, config, claims := killedNode(t)
	delays := []time.Duration{0, 10, 20, 30, 40, 50, 60, 80, 100, 120, 150}
	for _, delay := range needs.Sample(delays, 0, 40, 100) {
		t.Run(fmt.Sprintf("%d ms after the container was created", delay), func(t *testing.T) {
			d := newTestDriverWith(t, n, config)
			cfg := d.stubborn()
			claims.reserve(t, cfg)
			d.dieAfter(config, cfg, failpoint.StartContainerCreated, delay*time.Millisecond)
			next := newTestDriverWith(t, n, config)
			next.driver.agents.NoteTask(cfg)
			_, err := next.driver.reconciler.Once(next.ctx, 0)
			must.NoError(t, err)
			next.noTraces(cfg)
			claims.free(t)
		})
	}
}

// Every point that the calls pass is in the lists that the tests above go through, in that order.
func TestPoints_AreAllListed(t *testing.T) {
	d := newTestDriver(t)
	var passed []failpoint.Point
	d.driver.failpoints = func(p failpoint.Point) { passed = append(passed, p) }
	cfg := d.stubborn()
	d.start(cfg)
	must.Eq(t, failpoint.Start, passed)
	d.runsOnce(cfg) // it ignores the signal by now
	passed = nil
	must.NoError(t, d.StopTask(cfg.ID, 50*time.Millisecond, "SIGTERM"))
	must.Eq(t, failpoint.Stop, passed)
	passed = nil
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	must.Eq(t, failpoint.Destroy, passed)
}
