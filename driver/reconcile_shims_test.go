package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
)

// containerd dies as the task's process has ended, and has lost the task when it is back: nobody tells the shim to go, or
// the runtime to remove the cgroups.
func TestReconcile_ShimsAndCgroupsThatContainerdLost(t *testing.T) {
	d, _ := reconciled(t, nil)
	cfg := d.task("sleep 600")
	handle := d.start(cfg)
	var state task.State
	must.NoError(t, handle.GetDriverState(&state))
	d.withoutContainerd()
	must.NoError(t, state.Init.Signal(unix.SIGKILL))
	d.wait(cfg)
	bundles, err := filepath.Glob(filepath.Join(d.node.containerd.Dir, "*", "io.containerd.runtime.v2.task", "*", state.ContainerID))
	must.NoError(t, err)
	for _, bundle := range bundles {
		_ = unix.Unmount(filepath.Join(bundle, "rootfs"), 0)
		must.NoError(t, os.RemoveAll(bundle))
	}
	must.NoError(t, d.node.containerd.Restart(d.ctx))
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	must.True(t, state.ShimProcess.Lives(), must.Sprint("it went by itself, so nothing is shown"))
	must.SliceNotEmpty(t, taskCgroups(t, cfg))

	stays := func(why string, grace time.Duration, other *testDriver) {
		t.Helper()
		_, err := other.driver.reconciler.Once(other.ctx, grace)
		must.NoError(t, err)
		must.True(t, state.ShimProcess.Lives(), must.Sprint(why))
		must.SliceNotEmpty(t, taskCgroups(t, cfg), must.Sprint(why))
	}
	stays("it is young", time.Hour, d)
	another, _ := reconciled(t, nil)
	another.driver.agents.NoteTask(&drivers.TaskConfig{AllocDir: filepath.Join(t.TempDir(), "a"), AllocID: "a"})
	stays("it is another agent's", 0, another)
	dry, _ := reconciled(t, func(c *spec.Config) { c.GC.DanglingContainers.DryRun = true })
	dry.driver.agents.NoteTask(cfg)
	stays("dry_run keeps it", 0, dry)
	// Nomad removes the directory when it collects the allocation.
	must.NoError(t, os.Rename(cfg.AllocDir, cfg.AllocDir+"-removed"))
	_, err = d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, os.Rename(cfg.AllocDir+"-removed", cfg.AllocDir))
	must.NoError(t, err)
	d.noTraces(cfg)
}

// A shim that has processes stays, whatever became of the container's record.
func TestReconcile_LeavesShimsWithProcesses(t *testing.T) {
	d, _ := reconciled(t, nil)
	cfg := d.task("sleep 600")
	handle := d.start(cfg)
	var state task.State
	must.NoError(t, handle.GetDriverState(&state))
	record, err := d.client.ContainerService().Get(d.ctx, state.ContainerID)
	must.NoError(t, err)
	must.NoError(t, d.client.ContainerService().Delete(d.ctx, state.ContainerID))
	d.driver.tasks.Remove(cfg.ID)
	removed, err := d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, err)
	must.SliceNotContains(t, removed, "shim "+state.ContainerID)
	must.True(t, state.ShimProcess.Lives())
	must.True(t, state.Init.Lives())
	must.SliceNotEmpty(t, taskCgroups(t, cfg))

	_, err = d.client.ContainerService().Create(d.ctx, record)
	must.NoError(t, err)
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	d.noTraces(cfg)
}

// newScope makes an empty cgroup in hierarchies of cgroup v1.
func newScope(t *testing.T, name string, hierarchies ...string) (dirs []string) {
	t.Helper()
	for _, hierarchy := range hierarchies {
		dir := filepath.Join(cgroup.Root, hierarchy, "nomad", name)
		must.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() {
			eventually(t, "the removal of the cgroup", func() bool { return cgroup.Remove(dir) == nil })
		})
		dirs = append(dirs, dir)
	}
	return dirs
}

// On cgroup v2 Nomad makes and removes the cgroups of tasks.
func TestReconcile_Cgroups(t *testing.T) {
	d, root := reconciled(t, nil)
	if cgroup.Unified() {
		removed, err := d.driver.reconciler.Once(d.ctx, 0)
		must.NoError(t, err)
		must.SliceEmpty(t, removed)
		return
	}
	alloc := uuid.NewString()
	must.NoError(t, os.Mkdir(filepath.Join(root, alloc), 0o755))
	d.driver.agents.NoteTask(&drivers.TaskConfig{AllocDir: filepath.Join(root, alloc), AllocID: alloc})
	kept := append(newScope(t, alloc+".frozen", cgroup.Freezer), newScope(t, uuid.NewString()+".another-agents", "cpu", "pids")...)
	kept = append(kept, newScope(t, "share", "cpu")...)
	kept = append(kept, newScope(t, alloc, "cpu")...)
	busy := newScope(t, alloc+".busy", "cpu", "pids")
	inside := proctest.Sleeper(t)
	must.NoError(t, os.WriteFile(filepath.Join(busy[0], "cgroup.procs"), fmt.Append(nil, inside.PID), 0))
	starting := newScope(t, alloc+".starting", "cpu", "pids")
	_, started, older := d.driver.starts.tryBegin(d.ctx, startKey(alloc, "starting"))
	must.Nil(t, older)
	defer started()
	kept = append(append(kept, busy...), starting...)

	ended := append(newScope(t, alloc+".ended", "cpu", "pids"), newScope(t, alloc+".ended/below", "cpu")...)
	removed, err := d.driver.reconciler.Once(d.ctx, time.Hour)
	must.NoError(t, err)
	must.SliceEmpty(t, removed, must.Sprint("it is young"))
	removed, err = d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, err)
	must.Eq(t, []string{"cgroup /nomad/" + alloc + ".ended"}, removed)
	for _, dir := range ended {
		must.DirNotExists(t, dir)
	}
	for _, dir := range kept {
		must.DirExists(t, dir)
	}
}
