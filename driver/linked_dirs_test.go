package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

// A task whose image has a link where the runtime makes device nodes is not started, so that nothing is made where it leads.
func TestImage_LinkedSystemDirs(t *testing.T) {
	n := requireNode(t)
	d := newTestDriverWith(t, n, n.config())
	for _, dir := range []string{"dev", "proc", "sys"} {
		outside := t.TempDir()
		image := n.pushFiles(t, "linked-"+dir, nil, images.File{Path: dir, Link: outside})
		cfg := d.task("true", func(c *TaskConfig) { c.Image = image })
		_, _, err := d.driver.StartTask(cfg)
		made, readErr := os.ReadDir(outside)
		must.NoError(t, readErr)
		must.SliceEmpty(t, made)
		must.ErrorContains(t, err, "/"+dir+" of the image: it is a link")
		d.nothingLeft(cfg)
		must.SliceEmpty(t, mountsBelow(t, d.driver.grants.config.RunDir))
	}
}

func TestReadOnlyMounts(t *testing.T) {
	bind := mount.Mount{Type: "bind", Source: "/a", Options: []string{"rw", "rbind"}}
	must.Eq(t, []mount.Mount{
		bind, {Type: "overlay", Options: []string{"index=off", "lowerdir=/3/fs:/2/fs:/1/fs"}},
		{Type: "overlay", Options: []string{"lowerdir=/2/fs:/1/fs"}},
	}, readOnlyMounts([]mount.Mount{
		bind, {Type: "overlay", Options: []string{"workdir=/3/work", "upperdir=/3/fs", "lowerdir=/2/fs:/1/fs", "index=off", "uidmap=0:1:2"}},
		{Type: "overlay", Options: []string{"lowerdir=/2/fs:/1/fs"}},
	}))
}

// A snapshot of so many layers that their names do not fit into the options of one mount is looked into like any other.
func TestLookInto_ManyLayers(t *testing.T) {
	requireNode(t)
	dir := t.TempDir()
	var layers []string
	for n := range 100 {
		layers = append(layers, filepath.Join(dir, "snapshots", fmt.Sprint(n), "fs"))
		must.NoError(t, os.MkdirAll(layers[n], 0o755))
	}
	must.NoError(t, os.Symlink("/", filepath.Join(layers[99], "dev")))
	d := &Driver{grants: &grants{config: runtime.Config{RunDir: filepath.Join(dir, "run")}}}
	overlay := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{
		"workdir=" + dir + "/snapshots/0/work", "upperdir=" + layers[0], "lowerdir=" + strings.Join(layers[1:], ":"),
	}}
	must.ErrorContains(t, d.lookInto(readOnlyMounts([]mount.Mount{overlay}), rootfs.RefuseLinkedDirs), "it is a link")
}
