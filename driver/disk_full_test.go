package driver

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// smallNode has a containerd of its own, on a disk of its own.
func smallNode(t *testing.T, size string) (n *testNode, dir string) {
	t.Helper()
	copied := *requireNode(t)
	dir = filepath.Join(copied.dir, "small")
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(dir, 0)) })
	var err error
	copied.containerd, err = node.StartContainerd(context.Background(), filepath.Join(dir, "c"),
		node.ContainerdOptions{Binary: os.Getenv("TRANCHE_TEST_CONTAINERD")})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, copied.containerd.Stop()) })
	return &copied, dir
}

func TestDiskFull_WhilePulling(t *testing.T) {
	cases := []struct {
		name string
		size int // of the layer
	}{
		{"while fetching", 40 << 20},
		{"while unpacking", 18 << 20},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n, dir := smallNode(t, "30m")
			d := newTestDriverWith(t, n, n.config())
			reg := newTestRegistry(t)
			ref, layer := reg.unique(t, n.busybox, "large:1", c.size)
			edit := func(c *spec.TaskConfig) { c.Image = ref }
			err := d.startFails(edit)
			must.ErrorContains(t, err, "no space left on device")
			must.ErrorContains(t, err, "free space there")
			must.True(t, recoverable.Is(err))
			d.nothingPulled(ref, layer)
			must.Less(t, 8<<20, used(t, dir))

			must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=200m"))
			d.run(d.task("echo there", edit), "there")
		})
	}
}

func TestDiskFull_WhileReadingAnArchive(t *testing.T) {
	n, dir := smallNode(t, "30m")
	d := newTestDriverWith(t, n, n.config())
	img, _ := uniqueImage(t, n.busybox, 40<<20)
	edit := func(c *spec.TaskConfig) { c.Image = "docker-archive:local/image.tar" }
	cfg := d.failing(edit)
	must.NoError(t, images.SaveDockerArchive(img, "app:1", filepath.Join(cfg.TaskDir().LocalDir, "image.tar")))
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, "no space left on device")
	must.ErrorContains(t, err, "free space there")
	must.True(t, recoverable.Is(err))
	d.nothingLeft(cfg)
	must.Less(t, 8<<20, used(t, dir))
	must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=200m"))

	cfg = d.task("echo there", edit)
	must.NoError(t, images.SaveDockerArchive(img, "app:1", filepath.Join(cfg.TaskDir().LocalDir, "image.tar")))
	d.run(cfg, "there")
}

// used is how many bytes of the disk are taken.
func used(t *testing.T, dir string) int {
	t.Helper()
	var stat unix.Statfs_t
	must.NoError(t, unix.Statfs(dir, &stat))
	return int(stat.Blocks-stat.Bfree) * int(stat.Bsize)
}
