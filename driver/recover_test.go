package driver

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
)

func TestRecover_RunningTask(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("echo before; while [ ! -e /local/go ]; do sleep 0.05; done; echo after; exit 6")
	handle := d.start(cfg)
	d.stdout(cfg, "before")

	d = d.restart()
	must.NoError(t, d.RecoverTask(handle))
	must.NoError(t, d.RecoverTask(handle)) // Nomad may ask twice.
	status, err := d.InspectTask(cfg.ID)
	must.NoError(t, err)
	must.Eq(t, "running", string(status.State))
	result, err := d.ExecTask(cfg.ID, []string{"/bin/touch", "/local/go"}, time.Minute)
	must.NoError(t, err)
	must.Zero(t, result.ExitResult.ExitCode)
	must.Eq(t, 6, d.wait(cfg).ExitCode)
	d.stdout(cfg, "after")
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
}

func TestRecover_TaskThatEndedMeanwhile(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("sleep 0.5; exit 9")
	handle := d.start(cfg)
	d.driver.Shutdown()
	eventually(t, "the end of the process", func() bool { return !alive(pidOf(t, handle)) })

	d = newTestDriverWith(t, d.node, d.node.config())
	must.NoError(t, d.RecoverTask(handle))
	must.Eq(t, 9, d.wait(cfg).ExitCode)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
}

func TestRecover_TaskThatIsGone(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("sleep 600")
	handle := d.start(cfg)
	d.killTaskBehindTheDriver(cfg)

	d = d.restart()
	must.ErrorContains(t, d.RecoverTask(handle), "no process for container")
	d.nothingLeft(cfg)
	must.ErrorContains(t, d.DestroyTask(cfg.ID, true), "task not found")
}

func TestRecover_DestroyOfWhatCouldNotBeRecovered(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("sleep 600")
	d.start(cfg)
	d = d.restart()
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	d.nothingLeft(cfg)
}

func TestContainerd_RestartsUnderARunningTask(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("echo up; while [ ! -e /local/go ]; do sleep 0.05; done; echo after; exit 6")
	d.start(cfg)
	d.stdout(cfg, "up")
	must.NoError(t, d.node.containerd.Kill())
	must.NoError(t, d.node.containerd.Restart(d.ctx))

	_, err := d.ExecTask(cfg.ID, []string{"/bin/touch", "/local/go"}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, 6, d.wait(cfg).ExitCode)
	d.stdout(cfg, "after")

	next := d.task("echo next")
	result, _ := d.run(next, "next")
	must.Zero(t, result.ExitCode)
}

func TestContainerd_ExitWhileItIsUnavailable(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("echo up; while [ ! -e /local/go ]; do sleep 0.05; done; exit 6")
	d.start(cfg)
	d.stdout(cfg, "up")
	must.NoError(t, d.node.containerd.Kill())
	touch(t, cfg.TaskDir().LocalDir+"/go")
	// The shim tells, without containerd.
	must.Eq(t, 6, d.wait(cfg).ExitCode)
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	must.NoError(t, d.node.containerd.Restart(d.ctx))
	d.eventuallyNothingLeft(cfg)
}

func TestContainerd_UnavailableWhenATaskIsRecovered(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("echo up; while [ ! -e /local/go ]; do sleep 0.05; done; exit 6")
	handle := d.start(cfg)
	d.stdout(cfg, "up")
	must.NoError(t, d.node.containerd.Kill())

	d = d.restart()
	must.NoError(t, d.RecoverTask(handle))
	must.NoError(t, d.node.containerd.Restart(d.ctx))
	touch(t, cfg.TaskDir().LocalDir+"/go")
	must.Eq(t, 6, d.wait(cfg).ExitCode)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
}

// stored returns a handle with another state than the task's own.
func (d *testDriver) stored(cfg *drivers.TaskConfig, state task.State) *drivers.TaskHandle {
	d.t.Helper()
	handle, err := task.New(d.driver.plugin, cfg, state).NomadHandle()
	must.NoError(d.t, err)
	return handle
}

// A process ID and a start time come again after a reboot, and may then be anybody's.
func TestRecover_LeavesProcessesOfOthersAlone(t *testing.T) {
	d := newTestDriver(t)
	for name, boot := range map[string]string{
		"after a reboot":                       "00000000-0000-4000-8000-000000000000",
		"after a reboot, from an older driver": "",
	} {
		t.Run(name, func(t *testing.T) {
			stranger := proctest.Sleeper(t)
			theirs := stranger
			theirs.BootID = boot
			cfg := d.failing()
			err := d.RecoverTask(d.stored(cfg, task.State{ContainerID: naming.ContainerID(cfg), PID: uint32(theirs.PID),
				Init: theirs, ShimProcess: theirs, Cgroup: "/nomad/" + cfg.AllocID + ".task"}))
			must.ErrorContains(t, err, "no process for container")
			must.True(t, stranger.Lives())
		})
	}
}

// Drivers up to 0.1 wrote down processes without the boot ID. Theirs are known by where they are.
func TestRecover_HandleOfAnOlderDriver(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.stubborn()
	handle := d.start(cfg)
	d.stdout(cfg, "life ")
	var state task.State
	must.NoError(t, handle.GetDriverState(&state))
	older := state
	older.Init.BootID, older.ShimProcess.BootID = "", ""
	d.withoutContainerd()
	d = d.restart()
	must.NoError(t, d.RecoverTask(d.stored(cfg, older)))
	must.NoError(t, state.ShimProcess.Signal(unix.SIGKILL))
	must.NoError(t, state.ShimProcess.Wait(t.Context()))
	must.True(t, state.Init.Lives(), must.Sprint("it went with its shim, so nothing is shown"))
	must.NoError(t, d.StopTask(cfg.ID, 50*time.Millisecond, "SIGTERM"))
	must.ErrorContains(t, d.wait(cfg).Err, "is dead")
	must.False(t, state.Init.Lives())
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	must.NoError(t, d.node.containerd.Restart(d.ctx))
	d.noTraces(cfg)
}
