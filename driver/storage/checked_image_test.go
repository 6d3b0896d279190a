package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime/rootfs"
)

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
	needs.Root(t, "to mount")
	dir := t.TempDir()
	var layers []string
	for n := range 100 {
		layers = append(layers, filepath.Join(dir, "snapshots", fmt.Sprint(n), "fs"))
		must.NoError(t, os.MkdirAll(layers[n], 0o755))
	}
	must.NoError(t, os.Symlink("/", filepath.Join(layers[99], "dev")))
	s := New(Config{RunDir: filepath.Join(dir, "run")})
	overlay := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{
		"workdir=" + dir + "/snapshots/0/work", "upperdir=" + layers[0], "lowerdir=" + strings.Join(layers[1:], ":"),
	}}
	must.ErrorContains(t, s.lookInto(readOnlyMounts([]mount.Mount{overlay}), rootfs.RefuseLinkedDirs), "it is a link")
}
