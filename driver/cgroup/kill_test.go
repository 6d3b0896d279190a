package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
)

// newTestCgroup makes a cgroup and returns its path and how to put a process into it.
func newTestCgroup(t *testing.T, name string) (path string, join func(pid int)) {
	t.Helper()
	needs.Root(t, "to make a cgroup")
	top := Root
	if !Unified() {
		top = filepath.Join(Root, listed)
	}
	dir := filepath.Join(top, name)
	must.NoError(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() {
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error { return Remove(dir) }), wait.Timeout(time.Minute)))
	})
	return "/" + name, func(pid int) {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0o644))
	}
}

func TestKill(t *testing.T) {
	path, join := newTestCgroup(t, "tranche-kill")
	_, joinBelow := newTestCgroup(t, "tranche-kill/below")
	inside, below, outside := proctest.Sleeper(t), proctest.Sleeper(t), proctest.Sleeper(t)
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

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.Eq(t, path, OfContainer(inside.PID))
	must.NoError(t, Kill(ctx, path))
	must.NoError(t, inside.Wait(ctx))
	must.NoError(t, below.Wait(ctx))
	must.True(t, outside.Lives())
	must.NoError(t, Kill(ctx, path), must.Sprint("an empty one"))
	must.NoError(t, Kill(ctx, "/tranche-none"), must.Sprint("none"))
	must.NoError(t, Kill(ctx, ""), must.Sprint("one that is not known"))
}

// What runs in this process's own cgroup, or above it, is not a container's.
func TestOfContainer_NeverOurOwn(t *testing.T) {
	must.Eq(t, "", OfContainer(os.Getpid()))
	must.Eq(t, "", OfContainer(-1))
}
