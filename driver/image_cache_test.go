package driver

import (
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/spec"
)

// An image that somebody has removed is pulled again, all of it, although its manifest is remembered.
func TestImage_MetadataCacheDoesNotStandForTheImage(t *testing.T) {
	d := newTestDriver(t)
	ref := d.node.push(t, "removed:1", func(c *v1.Config) { c.Labels = map[string]string{"image": "to be removed"} })
	run := func() {
		cfg := d.task("echo ran", func(c *spec.TaskConfig) { c.Image = ref })
		d.run(cfg, "ran")
		must.NoError(t, d.DestroyTask(cfg.ID, false))
	}
	run()
	found, err := d.client.GetImage(d.ctx, ref)
	must.NoError(t, err)
	must.NoError(t, d.client.ImageService().Delete(d.ctx, ref, images.SynchronousDelete()))
	_, err = d.client.ContentStore().Info(d.ctx, found.Target().Digest)
	must.ErrorIs(t, err, errdefs.ErrNotFound)

	run()
	_, err = d.client.ContentStore().Info(d.ctx, found.Target().Digest)
	must.NoError(t, err)
}
