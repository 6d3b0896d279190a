package driver

import (
	"os"
	"testing"
	"time"

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

// A start does not wait for somebody to write to a FIFO of the image's.
func TestImage_FIFOs(t *testing.T) {
	n := requireNode(t)
	d := newTestDriverWith(t, n, n.config())
	fifo := images.File{Path: "fifo", FIFO: true}
	for name, c := range map[string]struct {
		files  []images.File
		user   string
		groups []string
		err    string
	}{
		"users":                    {[]images.File{{Path: "etc/passwd", FIFO: true}}, "nobody", nil, "/etc/passwd of the image"},
		"users, by a link":         {[]images.File{{Path: "etc/passwd", Link: "/fifo"}, fifo}, "nobody", nil, "/etc/passwd of the image"},
		"users, of whom none is":   {[]images.File{{Path: "etc/passwd", FIFO: true}}, "", nil, "/etc/passwd of the image"},
		"groups of a user":         {[]images.File{{Path: "etc/group", FIFO: true}}, "nobody", nil, "/etc/group of the image"},
		"groups, by a linked /etc": {[]images.File{{Path: "etc", Link: "/other"}, {Path: "other/group", FIFO: true}}, "1000:extra", nil, "/etc/group of the image"},
		"further groups":           {[]images.File{{Path: "etc/group", FIFO: true}}, "", []string{"extra"}, "/etc/group of the image"},
		"elsewhere":                {[]images.File{fifo}, "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			image := n.pushFiles(t, "fifo", []string{"/srv"}, append(c.files, images.File{Path: "srv/fifo", FIFO: true})...)
			cfg := d.failing(func(o *spec.TaskConfig) { o.Image, o.ForcePull, o.GroupAdd = image, true, c.groups })
			cfg.User = c.user
			result := make(chan error, 1)
			go func() {
				_, _, err := d.driver.StartTask(cfg)
				result <- err
			}()
			select {
			case err := <-result:
				if c.err == "" {
					must.NoError(t, err)
					must.NoError(t, d.driver.DestroyTask(cfg.ID, true))
				} else {
					must.ErrorContains(t, err, c.err)
				}
				d.nothingLeft(cfg)
			case <-time.After(time.Minute):
				t.Fatal("the start hangs")
			}
		})
	}
}
