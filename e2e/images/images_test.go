package images

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/shoenig/test/must"
)

func contents(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	found := map[string]string{}
	for tr := tar.NewReader(r); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		must.NoError(t, err)
		data, err := io.ReadAll(tr)
		must.NoError(t, err)
		found[header.Name] = header.Linkname + string(data)
	}
}

func TestImages(t *testing.T) {
	img, err := Busybox()
	must.NoError(t, err)
	img, err = WithFiles(img, File{Path: "/usr/share/hello", Content: "hi"})
	must.NoError(t, err)
	img, err = WithConfig(img, func(c *v1.Config) { c.User = "app" })
	must.NoError(t, err)

	files := contents(t, img)
	must.Eq(t, "busybox", files["bin/sh"])
	must.Eq(t, "hi", files["usr/share/hello"])
	must.MapContainsKey(t, files, "usr/share")

	registry, err := Registry()
	must.NoError(t, err)
	defer registry.Close()
	ref, err := registry.Push(context.Background(), img, "busybox:test")
	must.NoError(t, err)
	parsed, err := name.ParseReference(ref)
	must.NoError(t, err)
	pulled, err := remote.Image(parsed)
	must.NoError(t, err)
	config, err := pulled.ConfigFile()
	must.NoError(t, err)
	must.Eq(t, "app", config.Config.User)

	docker := filepath.Join(t.TempDir(), "docker.tar")
	must.NoError(t, SaveDockerArchive(img, "busybox:test", docker))
	read, err := tarball.ImageFromPath(docker, nil)
	must.NoError(t, err)
	must.Eq(t, "hi", contents(t, read)["usr/share/hello"])

	must.NoError(t, SaveOCIArchive(img, "busybox:test", filepath.Join(t.TempDir(), "oci.tar")))
}

func TestProgram_BringsItsLibraries(t *testing.T) {
	img, err := Program("/bin/ls", File{Path: "/etc/marker", Content: "here"})
	must.NoError(t, err)
	files := contents(t, img)
	must.MapContainsKey(t, files, "bin/ls")
	must.MapContainsKey(t, files, "etc/marker")
	must.MapContainsKey(t, files, "lib64/ld-linux-x86-64.so.2")
	must.MapContainsKey(t, files, "lib/x86_64-linux-gnu/libc.so.6")
}
