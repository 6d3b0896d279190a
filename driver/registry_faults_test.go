package driver

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"
)

// impatient is a driver that gives a pull up after some time without progress.
func impatient(t *testing.T, after string) *testDriver {
	n := requireNode(t)
	config := n.config()
	config.PullActivityTimeout = after
	d := newTestDriverWith(t, n, config)
	d.driver.images.Pace = image.Pace{Look: 50 * time.Millisecond, Report: 200 * time.Millisecond}
	return d
}

func TestRegistry_SlowIsNotStalled(t *testing.T) {
	d := impatient(t, "2s")
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "slow:1", 200<<10)
	// Four seconds, in pieces too small for containerd to have been given any before the end.
	reg.spoilWith(onGet(layer, slowly(10<<10, 200*time.Millisecond)))
	cfg := d.task("echo there", func(c *spec.TaskConfig) { c.Image = ref })
	result, _ := d.run(cfg, "there")
	must.Zero(t, result.ExitCode)
	must.Positive(t, d.events.said("Pulling image "+ref+": "), must.Sprint(d.events.all()))
	must.Eq(t, 1, d.events.said("Pulled image "+ref+" ("), must.Sprint(d.events.all()))
}

func TestRegistry_StalledMidLayer(t *testing.T) {
	d := impatient(t, "2s") // within which some of the layer comes
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "stalled:1", 200<<10)
	reg.spoilWith(onGet(layer, slowly(100<<10, time.Hour)))
	err := d.startFails(func(c *spec.TaskConfig) { c.Image = ref })
	must.ErrorContains(t, err, "no progress for 2s")
	must.ErrorContains(t, err, "pull_activity_timeout")
	must.ErrorContains(t, err, " of ")
	must.True(t, recoverable.Is(err))
	d.nothingPulled(ref, layer)
}

func TestRegistry_NeverAnswers(t *testing.T) {
	d := impatient(t, "500ms")
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "mute:1", 1)
	reg.spoilWith(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() })
	err := d.startFails(func(c *spec.TaskConfig) { c.Image = ref })
	must.ErrorContains(t, err, "no progress for 500ms (the registry has not answered)")
	must.True(t, recoverable.Is(err))
	d.nothingPulled(ref, layer)
}

func TestRegistry_SlowerThanTheTaskAllows(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "endless:1", 200<<10)
	reg.spoilWith(onGet(layer, slowly(1<<10, 100*time.Millisecond)))
	err := d.startFails(func(c *spec.TaskConfig) { c.Image, c.ImagePullTimeout = ref, "700ms" })
	must.ErrorContains(t, err, "not done after 700ms")
	must.ErrorContains(t, err, "image_pull_timeout")
	must.True(t, recoverable.Is(err))
	d.nothingPulled(ref, layer)
}

func TestRegistry_BreaksMidLayerOnce(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "breaks:1", 200<<10)
	var once sync.Once
	reg.spoilWith(onGet(layer, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		spoil := func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) }
		once.Do(func() { spoil = cutAfter(100 << 10) })
		spoil(w, r, next)
	}))
	cfg := d.task("echo there", func(c *spec.TaskConfig) { c.Image = ref })
	result, _ := d.run(cfg, "there")
	must.Zero(t, result.ExitCode)
	must.Eq(t, 2, reg.gets(layer))
}

func TestRegistry_BreaksMidLayerAlways(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "broken:1", 200<<10)
	reg.spoilWith(onGet(layer, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Range") != "" {
			panic(http.ErrAbortHandler)
		}
		cutAfter(100<<10)(w, r, next)
	}))
	err := d.startFails(func(c *spec.TaskConfig) { c.Image = ref })
	must.ErrorContains(t, err, "pull image")
	must.ErrorContains(t, err, "EOF")
	must.True(t, recoverable.Is(err))
	d.nothingPulled(ref, layer)
}

func TestRegistry_Refuses(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "refused:1", 1)
	cases := []struct {
		name        string
		status      int
		want        string
		recoverable bool
	}{
		{"unauthorized", http.StatusUnauthorized, "without credentials", false},
		{"forbidden", http.StatusForbidden, "without credentials", false},
		{"too many requests", http.StatusTooManyRequests, "limits how often", true},
		{"broken", http.StatusInternalServerError, "the registry failed", true},
		{"overloaded", http.StatusServiceUnavailable, "503", true},
	}
	for _, c := range cases {
		t.Run(c.name+" at once", func(t *testing.T) {
			d := d.in(t)
			reg.spoilWith(answer(c.status))
			err := d.startFails(func(o *spec.TaskConfig) { o.Image = ref })
			must.ErrorContains(t, err, c.want)
			must.Eq(t, c.recoverable, recoverable.Is(err))
			d.nothingPulled(ref, layer)
		})
		t.Run(c.name+" at a layer", func(t *testing.T) {
			d := d.in(t)
			reg.spoilWith(onGet(layer, answer(c.status)))
			err := d.startFails(func(o *spec.TaskConfig) { o.Image = ref })
			must.ErrorContains(t, err, c.want)
			d.nothingPulled(ref, layer)
		})
	}
}

// A web page in the place of the registry's answer: a network wants its users to log in first.
func TestRegistry_CaptivePortal(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "portal:1", 1)
	page := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte("<html>Log in</html>"))
	}
	for name, spoil := range map[string]spoiler{
		"at once": page,
		"by a redirection": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Path == "/login" {
				page(w, r, next)
			} else {
				http.Redirect(w, r, "/login", http.StatusFound)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			reg.spoilWith(spoil)
			err := d.startFails(func(o *spec.TaskConfig) { o.Image = ref })
			must.ErrorContains(t, err, "instead of the registry a web page answered")
			must.True(t, recoverable.Is(err))
			d.nothingPulled(ref, layer)
		})
	}
}

// What no further try can make an image is not tried again.
func TestPull_BrokenImages(t *testing.T) {
	d := newTestDriver(t)
	withLayer := func(base v1.Image, content string, mediaType types.MediaType) v1.Image {
		img, err := mutate.AppendLayers(base, static.NewLayer([]byte(content), mediaType))
		must.NoError(t, err)
		return img
	}
	otherRoot := strings.Repeat("0", 64)
	const broken, noLayers = "the image is broken", "has no layers: it is an artifact"
	for name, c := range map[string]struct {
		image v1.Image
		want  string
	}{
		"a layer that is compressed by nobody": {withLayer(d.node.busybox, "garbage", types.OCILayer), broken},
		"a layer that is no archive":           {withLayer(d.node.busybox, strings.Repeat("x", 1024), types.OCIUncompressedLayer), broken},
		"a layer of another kind":              {withLayer(d.node.busybox, "chart", "application/vnd.example.chart"), broken},
		"another root":                         {withConfig{d.node.busybox, `{"rootfs":{"type":"layers","diff_ids":["sha256:` + otherRoot + `"]}}`}, broken},
		"a configuration without a root":       {withConfig{d.node.busybox, "{}"}, broken},
		"a configuration that is none":         {withConfig{d.node.busybox, "none"}, broken},
		"an artifact":                          {withConfig{empty.Image, "{}"}, noLayers},
		"an artifact with a file":              {withConfig{withLayer(empty.Image, "chart", "application/vnd.example.chart"), `{"name":"x"}`}, noLayers},
		"nothing":                              {empty.Image, noLayers},
	} {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			ref, err := d.node.registry.Push(t.Context(), c.image, "broken-image:1")
			must.NoError(t, err)
			err = d.startFails(func(o *spec.TaskConfig) { o.Image, o.ForcePull = ref, true })
			must.ErrorContains(t, err, c.want)
			must.False(t, recoverable.Is(err), must.Sprint(err))
		})
	}
	cfg := d.failing(func(o *spec.TaskConfig) { o.Image = "oci-archive:local/empty.tar" })
	must.NoError(t, images.SaveOCIArchive(empty.Image, "empty:1", filepath.Join(cfg.TaskDir().LocalDir, "empty.tar")))
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, noLayers)
	d.nothingLeft(cfg)
}

// withConfig is an image with another configuration, which need not be one.
type withConfig struct {
	v1.Image
	config string
}

func (c withConfig) RawConfigFile() ([]byte, error) { return []byte(c.config), nil }
func (c withConfig) ConfigName() (v1.Hash, error)   { return partial.ConfigName(c) }
func (c withConfig) RawManifest() ([]byte, error)   { return partial.RawManifest(c) }
func (c withConfig) Digest() (v1.Hash, error)       { return partial.Digest(c) }
func (c withConfig) Size() (int64, error)           { return partial.Size(c) }
func (c withConfig) Manifest() (*v1.Manifest, error) {
	manifest, err := c.Image.Manifest()
	if err != nil {
		return nil, err
	}
	manifest = manifest.DeepCopy()
	manifest.Config.Digest, manifest.Config.Size, err = v1.SHA256(strings.NewReader(c.config))
	return manifest, err
}

// An image whose configuration would fill the plugin's memory is not read, whatever it calls that.
func TestHugeConfiguration(t *testing.T) {
	d := newTestDriver(t)
	huge, err := images.WithConfig(d.node.busybox, func(c *v1.Config) {
		c.Labels = map[string]string{"huge": strings.Repeat(" ", image.MaxMetadataBytes)}
	})
	must.NoError(t, err)
	const tooLarge = "must not have more than 32 MiB"
	t.Run("from a registry", func(t *testing.T) {
		d := d.in(t)
		ref, err := d.node.registry.Push(t.Context(), oddConfig{huge, types.OCIConfigJSON}, "huge:1")
		must.NoError(t, err)
		err = d.startFails(func(c *spec.TaskConfig) { c.Image = ref })
		must.ErrorContains(t, err, tooLarge)
		must.False(t, recoverable.Is(err), must.Sprint(err))
	})
	for name, mediaType := range map[string]types.MediaType{
		"as it is": types.OCIConfigJSON, "as a layer": types.OCIUncompressedLayer,
	} {
		t.Run("from an archive, "+name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.failing(func(c *spec.TaskConfig) { c.Image = "oci-archive:local/huge.tar" })
			file := filepath.Join(cfg.TaskDir().LocalDir, "huge.tar")
			must.NoError(t, images.SaveOCIArchive(oddConfig{huge, mediaType}, "huge:1", file))
			_, _, err := d.StartTask(cfg)
			must.ErrorContains(t, err, tooLarge)
			d.nothingLeft(cfg)
		})
	}
}

// oddConfig is an image whose manifest says something else of its configuration than is true.
type oddConfig struct {
	v1.Image
	mediaType types.MediaType
}

func (o oddConfig) Manifest() (*v1.Manifest, error) {
	manifest, err := o.Image.Manifest()
	if err != nil {
		return nil, err
	}
	manifest = manifest.DeepCopy()
	manifest.MediaType, manifest.Config.MediaType = types.OCIManifestSchema1, o.mediaType
	return manifest, nil
}

func (o oddConfig) RawManifest() ([]byte, error) { return partial.RawManifest(o) }
func (o oddConfig) Digest() (v1.Hash, error)     { return partial.Digest(o) }
func (o oddConfig) Size() (int64, error)         { return partial.Size(o) }
func (oddConfig) MediaType() (types.MediaType, error) {
	return types.OCIManifestSchema1, nil
}
