package driver

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"
)

// imageFor says that it is for an architecture, and holds the name of it. Its programs are this machine's all the same.
func imageFor(t *testing.T, base v1.Image, architecture string) v1.Image {
	t.Helper()
	img, err := images.WithFiles(base, images.File{Path: "/for", Content: architecture + "\n"})
	must.NoError(t, err)
	file, err := img.ConfigFile()
	must.NoError(t, err)
	changed := file.DeepCopy()
	changed.Architecture = architecture
	img, err = mutate.ConfigFile(img, changed)
	must.NoError(t, err)
	return img
}

// indexFor is an image for several platforms.
func indexFor(t *testing.T, base v1.Image, architectures ...string) v1.ImageIndex {
	t.Helper()
	var index v1.ImageIndex = empty.Index
	for _, architecture := range architectures {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        imageFor(t, base, architecture),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	return index
}

func TestImage_Platform(t *testing.T) {
	d := newTestDriver(t)
	ref := d.node.registry.Host + "/platforms:1"
	parsed, err := name.ParseReference(ref)
	must.NoError(t, err)
	must.NoError(t, remote.WriteIndex(parsed, indexFor(t, d.node.busybox, "arm64", "amd64", "s390x")))
	cases := []struct{ platform, want string }{
		{"", "amd64"},
		{"linux/arm64", "arm64"},
		{"linux/arm64/v8", "arm64"},
		{"linux/s390x", "s390x"},
		{"linux/amd64", "amd64"},
	}
	for _, c := range cases {
		t.Run("platform "+c.platform, func(t *testing.T) {
			d := d.in(t)
			d.run(d.task("cat /for", func(o *spec.TaskConfig) { o.Image, o.Platform = ref, c.platform }), c.want)
		})
	}
	t.Run("none for it", func(t *testing.T) {
		d := d.in(t)
		err := d.startFails(func(o *spec.TaskConfig) { o.Image, o.Platform = ref, "linux/riscv64" })
		must.ErrorContains(t, err, "it has nothing for linux/riscv64; check the option platform")
	})
}

func TestImage_ForOnePlatform(t *testing.T) {
	d := newTestDriver(t)
	ref, err := d.node.registry.Push(d.ctx, imageFor(t, d.node.busybox, "arm64"), "arm:1")
	must.NoError(t, err)
	err = d.startFails(func(o *spec.TaskConfig) { o.Image, o.Platform = ref, "linux/amd64" })
	must.ErrorContains(t, err, `option platform = "linux/amd64": image "`+ref+`" is for linux/arm64`)
	d.run(d.task("cat /for", func(o *spec.TaskConfig) { o.Image, o.Platform = ref, "linux/arm64" }), "arm64")
	must.Zero(t, d.events.said("is for linux/arm64"))
	// Who does not ask for a platform may have an emulator.
	d.run(d.task("cat /for", func(o *spec.TaskConfig) { o.Image = ref }), "arm64")
	must.Eq(t, 1, d.events.said("Image "+ref+" is for linux/arm64, and this node is linux/amd64"))
}

// Most images do not say the variant in their configuration, but in the index that leads to them.
func TestImage_PlatformVariants(t *testing.T) {
	d := newTestDriver(t)
	push := func(t *testing.T, architecture, inIndex, inConfig string) string {
		img := imageFor(t, d.node.busybox, architecture)
		config, err := img.ConfigFile()
		must.NoError(t, err)
		config = config.DeepCopy()
		config.Variant = inConfig
		img, err = mutate.ConfigFile(img, config)
		must.NoError(t, err)
		if inIndex == "" {
			ref, err := d.node.registry.Push(d.ctx, img, "variants:1")
			must.NoError(t, err)
			return ref
		}
		ref := d.node.registry.Host + "/variants:1"
		parsed, err := name.ParseReference(ref)
		must.NoError(t, err)
		must.NoError(t, remote.WriteIndex(parsed, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture, Variant: inIndex}}})))
		return ref
	}
	for _, c := range []struct{ architecture, inIndex, inConfig, option, err, event string }{
		{"arm", "v6", "", "linux/arm/v6", "", ""},
		{"arm", "v6", "v6", "linux/arm/v6", "", ""},
		{"amd64", "v2", "", "linux/amd64/v2", "", ""},
		{"arm", "", "v7", "linux/arm/v6", "is for linux/arm/v7", ""},
		{"arm", "", "", "linux/arm64", "is for linux/arm/v7", ""},
		{"amd64", "", "v3", "", "", "is for linux/amd64/v3, and this node is linux/amd64: it runs only if the node's processor is of variant v3"},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			d := d.in(t)
			said := d.events.said(c.event)
			ref := push(t, c.architecture, c.inIndex, c.inConfig)
			edit := func(o *spec.TaskConfig) { o.Image, o.Platform, o.ForcePull = ref, c.option, true }
			if c.err != "" {
				must.ErrorContains(t, d.startFails(edit), c.err)
				return
			}
			d.run(d.task("cat /for", edit), c.architecture)
			if c.event != "" {
				eventually(t, "the event", func() bool { return d.events.said(c.event) == said+1 })
			}
		})
	}
}

func TestImage_ArchiveForSeveralPlatforms(t *testing.T) {
	d := newTestDriver(t)
	dir := t.TempDir()
	archive, err := layout.Write(dir, empty.Index)
	must.NoError(t, err)
	must.NoError(t, archive.AppendIndex(indexFor(t, d.node.busybox, "arm64", "amd64")))
	for platform, want := range map[string]string{"": "amd64", "linux/arm64": "arm64"} {
		cfg := d.task("cat /for", func(o *spec.TaskConfig) { o.Image, o.Platform = "oci-archive:local/image.tar", platform })
		must.NoError(t, exec.Command("tar", "-C", dir, "-cf", filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), ".").Run())
		d.run(cfg, want)
	}
	cfg := d.failing(func(o *spec.TaskConfig) { o.Image, o.Platform = "oci-archive:local/image.tar", "linux/s390x" })
	must.NoError(t, exec.Command("tar", "-C", dir, "-cf", filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), ".").Run())
	_, _, err = d.StartTask(cfg)
	must.ErrorContains(t, err, "holds no image for linux/s390x")
	d.nothingLeft(cfg)
}
