package driver

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"
)

// hosts lays a hosts.toml for a registry, and files beside it.
func (n *testNode) hosts(t *testing.T, registry, text string, files map[string]string) {
	t.Helper()
	dir := filepath.Join(n.config().RegistryHostsDir, registry)
	must.NoError(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.NoError(t, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644))
	for name, content := range files {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
}

// nobody is an address where nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	must.NoError(t, closed.Close())
	return closed.Addr().String()
}

func TestHosts_Mirrors(t *testing.T) {
	d := newTestDriver(t)
	full, empty := newTestRegistry(t), newTestRegistry(t)
	_, layer := full.unique(t, d.node.busybox, "mirrored:1", 1)
	d.node.hosts(t, "mirrors.example.com", fmt.Sprintf(`
server = "http://%s"
[host."http://%s"]
  capabilities = ["pull", "resolve"]
[host."http://%s"]
  capabilities = ["pull", "resolve"]
[host."http://%s"]
  capabilities = ["pull", "resolve"]
`, nobody(t), nobody(t), empty.host, full.host), nil)
	cfg := d.task("echo mirrored", func(c *spec.TaskConfig) { c.Image = "mirrors.example.com/mirrored:1" })
	d.run(cfg, "mirrored")
	must.Eq(t, 1, full.gets(layer))
}

// TestHosts_CredentialsAreNotForMirrors has a mirror ask for the credentials that are for the image's registry.
func TestHosts_CredentialsAreNotForMirrors(t *testing.T) {
	d := newTestDriver(t)
	mirror := newTestRegistry(t)
	mirror.unique(t, d.node.busybox, "private:1", 1)
	mirror.spoilWith(demand("user", testSecret))
	d.node.hosts(t, "private.example.com", fmt.Sprintf("server = %q\n", "http://"+mirror.host), nil)
	const ref = "private.example.com/private:1"
	auth := image.Auth{Username: "user", Password: testSecret}
	err := d.startFails(func(c *spec.TaskConfig) { c.Image, c.Auth = ref, auth })
	must.ErrorContains(t, err, "without credentials")
	auth.ServerAddress = mirror.host
	d.run(d.task("echo there", func(c *spec.TaskConfig) { c.Image, c.Auth = ref, auth }), "there")
}

func TestHosts_TLS(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	server := httptest.NewTLSServer(reg.handler)
	t.Cleanup(server.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	cases := []struct {
		name   string
		toml   string
		refuse bool
	}{
		{"unknown authority", "", true},
		{"CA", "ca = \"ca.pem\"\n", false},
		{"skip_verify", "skip_verify = true\n", false},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			img, _ := uniqueImage(t, d.node.busybox, 1)
			repository := fmt.Sprintf("tls%d:1", i)
			must.NoError(t, images.Push(context.Background(), img, reg.host+"/"+repository))
			d.node.hosts(t, "tls.example.com", fmt.Sprintf("server = %q\n%s", server.URL, c.toml), map[string]string{"ca.pem": ca})
			edit := func(o *spec.TaskConfig) { o.Image = "tls.example.com/" + repository }
			if c.refuse {
				must.ErrorContains(t, d.startFails(edit), "certificate signed by unknown authority")
				return
			}
			d.run(d.task("echo safe", edit), "safe")
		})
	}
}
