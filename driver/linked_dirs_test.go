package driver

import (
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"

	"github.com/tranche-gpu/tranche/internal/mounttest"
)

// A task whose image has a link where the runtime makes device nodes is not started, so that nothing is made where it leads.
func TestImage_LinkedSystemDirs(t *testing.T) {
	n := requireNode(t)
	d := newTestDriverWith(t, n, n.config())
	for _, dir := range []string{"dev", "proc", "sys"} {
		outside := t.TempDir()
		image := n.pushFiles(t, "linked-"+dir, nil, images.File{Path: dir, Link: outside})
		cfg := d.task("true", func(c *spec.TaskConfig) { c.Image = image })
		_, _, err := d.driver.StartTask(cfg)
		made, readErr := os.ReadDir(outside)
		must.NoError(t, readErr)
		must.SliceEmpty(t, made)
		must.ErrorContains(t, err, "/"+dir+" of the image: it is a link")
		d.nothingLeft(cfg)
		must.SliceEmpty(t, mounttest.Below(t, d.driver.runDir))
	}
}
