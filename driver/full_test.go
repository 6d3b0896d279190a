package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// smallDisk is a node whose containerd has everything on a file system of its own, and the directory of that.
func smallDisk(t *testing.T, options string) (*testNode, string) {
	t.Helper()
	shared := requireNode(t)
	dir, err := os.MkdirTemp("", "disk") // t.TempDir() is too long for containerd's socket.
	must.NoError(t, err)
	must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() {
		must.NoError(t, unix.Unmount(dir, 0))
		must.NoError(t, os.Remove(dir))
	})
	c, err := node.StartContainerd(context.Background(), filepath.Join(dir, "c"),
		node.ContainerdOptions{Binary: os.Getenv("TRANCHE_TEST_CONTAINERD")})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Stop()) })
	return &testNode{dir: shared.dir, containerd: c, registry: shared.registry, busybox: shared.busybox,
		reference: shared.reference}, dir
}

// fill writes until there is no room left, and returns how to make room again.
func fill(t *testing.T, dir string) (makeRoom func()) {
	t.Helper()
	file, err := os.Create(filepath.Join(dir, "filler"))
	must.NoError(t, err)
	defer file.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		n, err := file.Write(block)
		if errors.Is(err, unix.ENOSPC) && n < len(block) {
			block = block[:len(block)/2]
			continue
		}
		must.NoError(t, err)
	}
	return func() { must.NoError(t, os.Remove(file.Name())) }
}

func TestFull_DiskWhileStarting(t *testing.T) {
	n, dir := smallDisk(t, "size=64m")
	d := newTestDriverWith(t, n, n.config())
	warm := d.task("echo warm")
	d.run(warm, "warm")
	must.NoError(t, d.DestroyTask(warm.ID, false))
	d.noTraces(warm)

	makeRoom := fill(t, dir)
	cfg := d.stubborn()
	_, _, err := d.driver.StartTask(cfg)
	must.ErrorContains(t, err, unix.ENOSPC.Error())
	must.ErrorContains(t, err, "a disk of this node is full")
	must.True(t, recoverable.Is(err))
	d.noTraces(cfg)

	makeRoom()
	d.start(cfg)
	d.runsOnce(cfg)
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	d.noTraces(cfg)
}
