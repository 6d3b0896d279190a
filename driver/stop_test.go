package driver

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/prometheus/procfs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// hang has a process outlive SIGKILL until release is called, and with it the init process of its PID namespace: the
// kernel keeps a process that is traced until its tracer has seen the end of it.
func hang(t *testing.T, pid int) (release func()) {
	t.Helper()
	attached, released := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // a tracer is a thread
		defer runtime.UnlockOSThread()
		attached <- unix.PtraceSeize(pid)
		<-released
	}()
	must.NoError(t, <-attached)
	t.Cleanup(func() { close(released) })
	return func() {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		must.NoError(t, err)
		must.Eq(t, unix.SIGKILL, status.Signal())
	}
}

// childOf waits for a child of a process.
func childOf(t *testing.T, parent int) (child int) {
	t.Helper()
	eventually(t, "a child of the process", func() bool {
		processes, err := procfs.AllProcs()
		must.NoError(t, err)
		for _, p := range processes {
			if of, err := proc.Parent(p.PID); err == nil && of == parent {
				child = p.PID
			}
		}
		return child != 0
	})
	return child
}

// A process may hang in the kernel for longer than anybody waits. Nomad asks for the removal once.
func TestDestroyTask_LeavesWhatHangsToTheReconciler(t *testing.T) {
	d, _ := reconciled(t, nil)
	cfg := d.task("sleep 600 & wait")
	init := pidOf(t, d.start(cfg))
	release := hang(t, childOf(t, init))
	d.driver.plugin.KillWait = 100 * time.Millisecond
	must.ErrorContains(t, d.DestroyTask(cfg.ID, true), "hangs in the kernel")
	must.True(t, alive(init))

	release()
	eventually(t, "the end of the process", func() bool { return !alive(init) })
	_, err := d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, err)
	d.noTraces(cfg)
}

// halt stops a process that others wait for, as one does that hangs.
func halt(t *testing.T, p proc.ID) {
	t.Helper()
	must.NoError(t, p.Signal(unix.SIGSTOP))
	t.Cleanup(func() { must.NoError(t, p.Signal(unix.SIGCONT)) })
}

// noProcesses asserts that no process is left in the task's cgroups.
func noProcesses(t *testing.T, cfg *drivers.TaskConfig) {
	t.Helper()
	for _, dir := range taskCgroups(t, cfg) {
		data, err := os.ReadFile(dir + "/cgroup.procs")
		must.NoError(t, err)
		must.Eq(t, "", strings.TrimSpace(string(data)), must.Sprintf("processes are left in %s", dir))
	}
}

// The task gets its stop signal, and ends after kill_timeout at the latest, whatever hangs that should see to it.
func TestStopTask_WhateverHangs(t *testing.T) {
	const polite = "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"
	const rude = "sleep 601 & trap '' TERM; echo up; while :; do sleep 0.05; done"
	cases := []struct {
		name             string
		shim, containerd bool
		script           string
		timeout          time.Duration
		code             int // -1: not known
	}{
		{"the shim, asked", true, false, polite, time.Minute, -1},
		{"the shim, by force", true, false, rude, time.Second, -1},
		{"containerd, asked", false, true, polite, time.Minute, 3},
		{"containerd, by force", false, true, rude, time.Second, 137},
		{"both, by force", true, true, rude, time.Second, -1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := newTestDriver(t)
			d.driver.plugin.KillWait = 10 * time.Second
			cfg := d.task(c.script)
			handle := d.start(cfg)
			d.stdout(cfg, "up")
			var state task.State
			must.NoError(t, handle.GetDriverState(&state))
			if c.containerd {
				containerd, err := proc.Find(d.node.containerd.PID())
				must.NoError(t, err)
				halt(t, containerd)
			}
			if c.shim {
				halt(t, state.ShimProcess)
			}
			began := time.Now()
			must.NoError(t, d.StopTask(cfg.ID, c.timeout, "SIGTERM"))
			must.Less(t, 25*time.Second, time.Since(began))
			must.False(t, state.Init.Lives())
			noProcesses(t, cfg)
			result := d.wait(cfg)
			if c.code < 0 {
				must.ErrorContains(t, result.Err, "the shim of container "+state.ContainerID)
			} else {
				must.NoError(t, result.Err)
				must.Eq(t, c.code, result.ExitCode)
			}
		})
	}
}

// A container whose shim hangs is removed, too.
func TestReconcile_ShimHangs(t *testing.T) {
	d, _ := reconciled(t, nil)
	cfg := d.task("trap '' TERM; echo up; while :; do sleep 0.05; done")
	handle := d.start(cfg)
	d.stdout(cfg, "up")
	var state task.State
	must.NoError(t, handle.GetDriverState(&state))
	next, _ := reconciled(t, nil)
	next.driver.agents.NoteTask(cfg)
	halt(t, state.ShimProcess)
	removed, err := next.driver.reconciler.Once(next.ctx, 0)
	must.NoError(t, err)
	must.SliceContains(t, removed, "container "+state.ContainerID)
	next.noTraces(cfg)
	must.False(t, state.Init.Lives())
}
