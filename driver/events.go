package driver

import (
	"fmt"

	"github.com/tranche-gpu/tranche/driver/image"
)

// sayCreating tells the task's user which image is about to run.
func (d *Driver) sayCreating(s *startup, i *image.Image) {
	digest := i.Target().Digest.String()
	d.say(s.cfg, map[string]string{"container_id": s.id, "image": s.options.Image, "image_digest": digest},
		"Creating container %s of image %s (%s)", s.id, s.options.Image, digest)
}

// sayStarted tells the task's user what runs.
func (d *Driver) sayStarted(h *taskHandle, s *startup) {
	with := ""
	if s.init != "" {
		with = ", init " + s.init
	}
	d.say(s.cfg, map[string]string{"container_id": s.id, "pid": fmt.Sprint(h.state.PID), "runtime": s.runtime.name},
		"Started: PID %d, image %s, runtime %s%s", h.state.PID, s.options.Image, s.runtime.name, with)
}
