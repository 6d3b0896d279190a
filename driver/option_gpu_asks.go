package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// Where no scheduler does it for them, containers ask for a fraction of a GPU themselves: by environment variables,
// annotations, or a CDI device (package ask). A task's container must not. Nomad counts the slices that it places, and
// would know nothing of what such a container gets.
//
// What the job says is refused: its author expects a GPU, and would find out by a program that sees none. What the image
// says in its own ENV is left out, and an event tells so: its author meant those who start it by hand, the job's author
// may not even know of it, and the same image has to run with a device block.

const askAdvice = "so that Nomad knows of it and places the task, a task asks in its resources block, with device " +
	"\"nvidia/slice\" { count = N } for N slices of a GPU's memory; constraint blocks in there say which GPU"

// refuseAsks refuses a task whose environment asks. An empty variable asks for nothing.
func refuseAsks(cfg *drivers.TaskConfig) error {
	var set []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		if value := cfg.Env[name]; request.IsVariable(name) && value != "" {
			set = append(set, fmt.Sprintf("%s = %s", name, quoted(value)))
		}
	}
	if len(set) == 0 {
		return nil
	}
	return fmt.Errorf("the task's environment sets %s, by which containers ask that no scheduler starts; %s: write that, "+
		"and remove the variable from the env or template block", strings.Join(set, " and "), askAdvice)
}

// quoted shows a value of anybody's, and not more than a line of it.
func quoted(value string) string {
	const most = 64
	if len(value) <= most {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%q…", strings.ToValidUTF8(value[:most], "?"))
}

// checkAsks refuses what the config block may say to the same end.
func (c *TaskConfig) checkAsks() error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(c.Annotations.merged())) {
		if isAskAnnotation(key) {
			errs = append(errs, fmt.Errorf("option annotations: %q: by it containers ask that no scheduler starts; %s: write "+
				"that, and remove the annotation", key, askAdvice))
		}
	}
	for _, device := range c.Devices {
		if isAskDevice(device) {
			errs = append(errs, fmt.Errorf("option devices = %q: by it containers ask that no scheduler starts; %s: write "+
				"that, and remove the device", device, askAdvice))
		}
	}
	return errors.Join(errs...)
}

func isAskAnnotation(key string) bool {
	return slices.Contains([]string{request.MemoryAnnotation, request.GPUAnnotation, request.ComputeAnnotation}, key)
}

func isAskDevice(name string) bool {
	vendor, class, _, err := parser.ParseQualifiedName(name)
	return err == nil && vendor == request.CDIVendor && class == request.CDIClass
}

// imageAsks are the variables by which an image asks in its own ENV.
func imageAsks(env []string) []string {
	var names []string
	for _, entry := range env {
		if name, value, _ := strings.Cut(entry, "="); request.IsVariable(name) && value != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// notifyUnmetRequests emits an event for a task without slices whose image requests some.
func (d *Driver) notifyUnmetRequests(s *startup, i *image.Image) {
	if names := imageAsks(i.Process.Env); len(names) > 0 && len(s.grant.claims) == 0 {
		d.notify(s.cfg, map[string]string{"image": s.options.Image}, "The image asks for GPU memory by its own %s, which a task "+
			"does not get by that: %s", strings.Join(names, " and "), askAdvice)
	}
}
