package driver

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// withoutContainerd kills containerd and sees to it that it is back for the other tests.
func (d *testDriver) withoutContainerd() {
	d.t.Helper()
	must.NoError(d.t, d.node.containerd.Kill())
	d.t.Cleanup(func() {
		if d.node.containerd.PID() == 0 {
			must.NoError(d.t, d.node.containerd.Restart(d.ctx))
		}
	})
}

// A task is stopped while containerd is unavailable, by way of its shim, and the end is told.
func TestUnavailable_StopTask(t *testing.T) {
	const polite = "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"
	const rude = "trap '' TERM; echo up; while :; do sleep 0.05; done"
	stop := func(d *testDriver, cfg *drivers.TaskConfig, timeout time.Duration) {
		must.NoError(d.t, d.StopTask(cfg.ID, timeout, "SIGTERM"))
	}
	type stopCase struct {
		name   string
		script string
		end    func(d *testDriver, cfg *drivers.TaskConfig)
		code   int
		// recovered: after containerd became unavailable.
		recovered bool
	}
	ways := []stopCase{
		{"when asked", polite, func(d *testDriver, cfg *drivers.TaskConfig) { stop(d, cfg, time.Minute) }, 3, false},
		{"by force", rude, func(d *testDriver, cfg *drivers.TaskConfig) { stop(d, cfg, 50*time.Millisecond) }, 137, false},
		{"by a signal", polite, func(d *testDriver, cfg *drivers.TaskConfig) {
			must.NoError(d.t, d.SignalTask(cfg.ID, "SIGTERM"))
		}, 3, false},
		{"by destroying it", rude, func(d *testDriver, cfg *drivers.TaskConfig) {
			h, _ := d.driver.tasks.Get(cfg.ID)
			must.NoError(d.t, d.DestroyTask(cfg.ID, true))
			must.Eq(d.t, 137, h.Exit().ExitCode)
		}, -1, false},
	}
	all := slices.Clone(ways)
	for _, c := range ways {
		c.name, c.recovered = c.name+", recovered without containerd", true
		all = append(all, c)
	}
	// Each way once, half of them recovered.
	for _, c := range needs.Sample(all, all[0], all[1], all[len(ways)+2], all[len(ways)+3]) {
		t.Run(c.name, func(t *testing.T) {
			d := newTestDriver(t)
			cfg := d.task(c.script)
			handle := d.start(cfg)
			d.stdout(cfg, "up")
			d.withoutContainerd()
			if c.recovered {
				d = d.restart()
				must.NoError(t, d.RecoverTask(handle))
			}
			began := time.Now()
			c.end(d, cfg)
			must.Less(t, task.KillWait, time.Since(began))
			if c.code >= 0 {
				result := d.wait(cfg)
				must.NoError(t, result.Err)
				must.Eq(t, c.code, result.ExitCode)
				must.NoError(t, d.DestroyTask(cfg.ID, false))
			}
			must.NoError(t, d.node.containerd.Restart(d.ctx))
			d.noTraces(cfg)
		})
	}
}

func TestUnavailable_StartTask(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.failing()
	d.withoutContainerd()
	_, _, err := d.driver.StartTask(cfg)
	must.ErrorContains(t, err, "containerd at "+d.node.containerd.Address+" does not answer")
	must.True(t, recoverable.Is(err))
}

// containerd becomes unavailable during a start, and does not come back in time.
func TestUnavailable_InStartTask(t *testing.T) {
	// What follows these points needs containerd. The others' steps are the last, or need none.
	points := []failpoint.Point{failpoint.StartClaimsPrepared, failpoint.StartLeaseTaken,
		failpoint.StartImageReady, failpoint.StartContainerCreated, failpoint.StartTaskCreated}
	for _, p := range needs.Sample(points, failpoint.StartClaimsPrepared, failpoint.StartTaskCreated) {
		t.Run(string(p), func(t *testing.T) {
			d := newTestDriver(t)
			d.driver.startPatience = time.Second
			d.driver.failpoints = func(passed failpoint.Point) {
				if passed == p && d.node.containerd.PID() != 0 {
					d.withoutContainerd()
				}
			}
			cfg := d.stubborn()
			began := time.Now()
			_, _, err := d.driver.StartTask(cfg)
			must.ErrorContains(t, err, d.node.containerd.Address)
			must.Eq(t, 1, strings.Count(err.Error(), "check that it runs"), must.Sprint(err))
			must.True(t, recoverable.Is(err), must.Sprint(err))
			must.Less(t, time.Minute, time.Since(began))
			must.NoError(t, d.node.containerd.Restart(d.ctx))
			d.noTraces(cfg)
		})
	}
}

// containerd restarts in the midst of a start: the task runs, or an error says why not and that it can be tried again.
func TestUnavailable_RestartInStartTask(t *testing.T) {
	for _, p := range failpoint.Start {
		t.Run(string(p), func(t *testing.T) {
			d := newTestDriver(t)
			restarted := false
			d.driver.failpoints = func(passed failpoint.Point) {
				if passed == p && !restarted {
					restarted = true
					must.NoError(t, d.node.containerd.Kill())
					must.NoError(t, d.node.containerd.Restart(d.ctx))
				}
			}
			cfg := d.stubborn()
			_, _, err := d.driver.StartTask(cfg)
			if err == nil {
				d.stdout(cfg, "life ")
				must.NoError(t, d.DestroyTask(cfg.ID, true))
			} else {
				must.True(t, recoverable.Is(err), must.Sprint(err))
				must.ErrorContains(t, err, "containerd")
			}
			d.noTraces(cfg)
		})
	}
}

// With the shim nobody looks after a task's processes any more.
func TestShim_Killed(t *testing.T) {
	const family = "sleep 601 & sleep 602 & echo up; trap '' TERM; while :; do sleep 1; done"
	start := func(t *testing.T) (*testDriver, *drivers.TaskConfig, *drivers.TaskHandle, task.State) {
		d := newTestDriver(t)
		cfg := d.task(family)
		handle := d.start(cfg)
		d.stdout(cfg, "up")
		var state task.State
		must.NoError(t, handle.GetDriverState(&state))
		shims, err := d.node.containerd.Shims()
		must.NoError(t, err)
		must.Eq(t, []int{state.ShimProcess.PID}, shims)
		return d, cfg, handle, state
	}
	killed := func(t *testing.T, state task.State) {
		must.NoError(t, state.ShimProcess.Signal(unix.SIGKILL))
		must.NoError(t, state.ShimProcess.Wait(t.Context()))
	}
	ended := func(d *testDriver, cfg *drivers.TaskConfig, state task.State) {
		d.t.Helper()
		result := d.wait(cfg)
		must.ErrorContains(d.t, result.Err, "the shim of container "+state.ContainerID)
		must.ErrorContains(d.t, result.Err, "is dead")
		must.False(d.t, state.Init.Lives())
	}

	t.Run("while containerd is there", func(t *testing.T) {
		d, cfg, _, state := start(t)
		killed(t, state)
		ended(d, cfg, state)
		must.NoError(t, d.DestroyTask(cfg.ID, false))
		d.noTraces(cfg)
	})
	t.Run("while containerd is unavailable, and stopped then", func(t *testing.T) {
		d, cfg, _, state := start(t)
		d.withoutContainerd()
		killed(t, state)
		must.True(t, state.Init.Lives(), must.Sprint("it went with its shim, so nothing is shown"))
		must.NoError(t, d.StopTask(cfg.ID, 50*time.Millisecond, "SIGTERM"))
		ended(d, cfg, state)
		must.NoError(t, d.DestroyTask(cfg.ID, false))
		noProcesses(t, cfg)
		must.NoError(t, d.node.containerd.Restart(d.ctx))
		d.noTraces(cfg)
	})
	t.Run("while the plugin is down", func(t *testing.T) {
		d, cfg, handle, state := start(t)
		d.driver.Shutdown()
		killed(t, state)
		d = newTestDriverWith(t, d.node, d.node.config())
		// Until containerd has noticed, the task is taken back all the same.
		if err := d.RecoverTask(handle); err == nil {
			ended(d, cfg, state)
			must.NoError(t, d.DestroyTask(cfg.ID, false))
		}
		eventually(t, "the end of the task's program", func() bool { return !state.Init.Lives() })
		d.noTraces(cfg)
	})
	t.Run("while plugin and containerd are down", func(t *testing.T) {
		d, cfg, handle, state := start(t)
		d.driver.Shutdown()
		d.withoutContainerd()
		killed(t, state)
		must.NoError(t, d.node.containerd.Restart(d.ctx))
		d = newTestDriverWith(t, d.node, d.node.config())
		must.ErrorContains(t, d.RecoverTask(handle), "no process for container")
		d.noTraces(cfg)
	})
}
