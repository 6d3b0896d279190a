package driver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// sleeper starts a process that sleeps until the test is over.
func sleeper(t *testing.T) proc.ID {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	must.NoError(t, cmd.Start())
	reaped := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(reaped)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-reaped
	})
	p, err := proc.Find(cmd.Process.Pid)
	must.NoError(t, err)
	return p
}

// newTestCgroup makes a cgroup and returns its path and how to put a process into it.
func newTestCgroup(t *testing.T, name string) (path string, join func(pid int)) {
	t.Helper()
	if os.Geteuid() != 0 {
		requireNode(t)
	}
	top := cgroupRoot
	if cgroups.Mode() != cgroups.Unified {
		top = filepath.Join(cgroupRoot, listedV1)
	}
	dir := filepath.Join(top, name)
	must.NoError(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() {
		eventually(t, "the removal of the cgroup", func() bool { return os.Remove(dir) == nil || !exists(dir) })
	})
	return "/" + name, func(pid int) {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0o644))
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestKillCgroup(t *testing.T) {
	path, join := newTestCgroup(t, "tranche-kill")
	_, joinBelow := newTestCgroup(t, "tranche-kill/below")
	inside, below, outside := sleeper(t), sleeper(t), sleeper(t)
	join(inside.PID)
	joinBelow(below.PID)
	// It makes processes as fast as it can.
	busy := exec.Command("sh", "-c", "while :; do sleep 600 & sleep 0.01; done")
	must.NoError(t, busy.Start())
	t.Cleanup(func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	})
	join(busy.Process.Pid)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	must.Eq(t, path, containerCgroup(inside.PID))
	must.NoError(t, killCgroup(ctx, path))
	must.NoError(t, inside.Wait(ctx))
	must.NoError(t, below.Wait(ctx))
	must.True(t, outside.Lives())
	must.NoError(t, killCgroup(ctx, path), must.Sprint("an empty one"))
	must.NoError(t, killCgroup(ctx, "/tranche-none"), must.Sprint("none"))
	must.NoError(t, killCgroup(ctx, ""), must.Sprint("one that is not known"))
}

// What runs in this process's own cgroup, or above it, is not a container's.
func TestContainerCgroup_NeverOurOwn(t *testing.T) {
	must.Eq(t, "", containerCgroup(os.Getpid()))
	must.Eq(t, "", containerCgroup(-1))
}
