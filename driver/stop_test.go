package driver

import (
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

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
