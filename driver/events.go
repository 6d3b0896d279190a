package driver

import (
	"fmt"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/task"
)

// notifyCreating emits an event with the image that is about to run.
func (d *Driver) notifyCreating(s *startup, i *image.Image) {
	digest := i.Target().Digest.String()
	d.notify(s.cfg, map[string]string{"container_id": s.id, "image": s.options.Image, "image_digest": digest},
		"Creating container %s of image %s (%s)", s.id, s.options.Image, digest)
}

// notifyStarted emits an event with what runs.
func (d *Driver) notifyStarted(h *task.Handle, s *startup) {
	with := ""
	if s.init != "" {
		with = ", init " + s.init
	}
	d.notify(s.cfg, map[string]string{"container_id": s.id, "pid": fmt.Sprint(h.State.PID), "runtime": s.runtime.Name},
		"Started: PID %d, image %s, runtime %s%s", h.State.PID, s.options.Image, s.runtime.Name, with)
}

// notifyUnmetRequests emits an event for a task without slices whose image requests some.
func (d *Driver) notifyUnmetRequests(s *startup, i *image.Image) {
	if event := s.gpu.Unmet(i.Process.Env); event != "" {
		d.notify(s.cfg, map[string]string{"image": s.options.Image}, "%s", event)
	}
}
