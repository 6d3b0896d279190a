package driver

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"
)

func TestImage_ComesFromContainerdWithoutTheRegistry(t *testing.T) {
	d := newTestDriver(t)
	registry, err := images.Registry()
	must.NoError(t, err)
	ref, err := registry.Push(d.ctx, d.node.busybox, "cached:1")
	must.NoError(t, err)
	pulled := d.task("echo pulled", func(c *spec.TaskConfig) { c.Image = ref })
	d.run(pulled, "pulled")
	must.SliceContains(t, d.events.all(), "Pulling image "+ref)
	must.NoError(t, registry.Close())

	found := d.task("echo found", func(c *spec.TaskConfig) { c.Image = ref })
	result, _ := d.run(found, "found")
	must.Zero(t, result.ExitCode)

	forced := d.failing(func(c *spec.TaskConfig) { c.Image, c.ForcePull = ref, true })
	_, _, err = d.StartTask(forced)
	must.ErrorContains(t, err, "pull image")
	d.nothingLeft(forced)
}

func TestImage_HostsTOML(t *testing.T) {
	d := newTestDriver(t)
	dir := filepath.Join(d.node.config().RegistryHostsDir, "registry.example.com")
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "hosts.toml"),
		[]byte("server = \"http://"+d.node.registry.Host+"\"\n"), 0o644))
	cfg := d.task("echo mirrored", func(c *spec.TaskConfig) { c.Image = "registry.example.com/busybox:test" })
	result, _ := d.run(cfg, "mirrored")
	must.Zero(t, result.ExitCode)
}

func TestImage_Archives(t *testing.T) {
	d := newTestDriver(t)
	img, err := images.WithFiles(d.node.busybox, images.File{Path: "/from", Content: "an archive"})
	must.NoError(t, err)
	cases := []struct {
		name  string
		image string
		save  func(v1.Image, string, string) error
		ref   string
	}{
		{"OCI", "oci-archive:local/image.tar", images.SaveOCIArchive, "app:1"},
		{"OCI without a name", "oci-archive:local/image.tar", images.SaveOCIArchive, ""},
		{"Docker", "docker-archive:local/image.tar", images.SaveDockerArchive, "app:1"},
		{"picked by name", "docker-archive:local/image.tar:app:1", images.SaveDockerArchive, "app:1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task("cat /from", func(o *spec.TaskConfig) { o.Image = c.image })
			must.NoError(t, c.save(img, c.ref, filepath.Join(cfg.TaskDir().LocalDir, "image.tar")))
			d.run(cfg, "an archive")
			must.NoError(t, d.DestroyTask(cfg.ID, false))
			d.nothingLeft(cfg)
			records, err := d.client.ImageService().List(d.ctx)
			must.NoError(t, err)
			for _, record := range records {
				must.NotEq(t, c.image, record.Name)
			}
		})
	}
}

func TestImage_BadInput(t *testing.T) {
	d := newTestDriver(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	must.NoError(t, closed.Close())
	cases := []struct {
		name  string
		image string
		lay   func(t *testing.T, local string)
		errs  []string
	}{
		{
			name: "not in the registry", image: d.node.registry.Host + "/nothing:here",
			errs: []string{"nothing:here", "check name and tag"},
		},
		{
			name: "no registry", image: closed.Addr().String() + "/app:1",
			errs: []string{"pull image", "connection refused"},
		},
		{
			name: "no archive", image: "oci-archive:local/none.tar",
			errs: []string{"oci-archive:local/none.tar", "no such file"},
		},
		{
			name: "an archive that is no tar", image: "oci-archive:local/text.tar",
			lay: func(t *testing.T, local string) {
				must.NoError(t, os.WriteFile(filepath.Join(local, "text.tar"), []byte("hello"), 0o644))
			},
			errs: []string{"local/text.tar", "no OCI or Docker image archive"},
		},
		{
			name: "an archive that is empty", image: "oci-archive:local/empty.tar",
			lay: func(t *testing.T, local string) {
				must.NoError(t, os.WriteFile(filepath.Join(local, "empty.tar"), make([]byte, 1024), 0o644))
			},
			errs: []string{"local/empty.tar", "no OCI or Docker image archive"},
		},
		{
			name: "a link out of the task's directory", image: "oci-archive:local/link.tar",
			lay: func(t *testing.T, local string) {
				must.NoError(t, os.Symlink("/etc/passwd", filepath.Join(local, "link.tar")))
			},
			errs: []string{"local/link.tar", "path escapes"},
		},
		{
			name: "no such name in the archive", image: "docker-archive:local/image.tar:other:2",
			lay: func(t *testing.T, local string) {
				must.NoError(t, images.SaveDockerArchive(d.node.busybox, "app:1", filepath.Join(local, "image.tar")))
			},
			errs: []string{`"other:2"`, "app:1"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.failing(func(o *spec.TaskConfig) { o.Image = c.image })
			if c.lay != nil {
				c.lay(t, cfg.TaskDir().LocalDir)
			}
			_, _, err := d.StartTask(cfg)
			must.Error(t, err)
			for _, want := range c.errs {
				must.ErrorContains(t, err, want)
			}
			d.nothingLeft(cfg)
		})
	}
}
