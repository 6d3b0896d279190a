package gpu

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/tranche-gpu/tranche/runtime/request"
)

// Where no scheduler does it for them, containers request a fraction of a GPU themselves: by environment variables,
// annotations, or a CDI device (package request). A task's container must not. Nomad counts the slices that it places, and
// would know nothing of what such a container gets.
//
// What the job requests is refused: its author expects a GPU, and would find out by a program that sees none. What the image
// requests in its own ENV is left out, and an event says so: its author meant those who start it by hand, the job's author
// may not even know of it, and the same image has to run with a device block.

const (
	onlyWithoutNomad = "this requests a GPU outside Nomad only"
	requestAdvice    = "request it with device \"nvidia/slice\" { count = N } in the task's resources block, where a constraint block " +
		"may select the GPU"
)

// checkVariables refuses a task whose environment requests a GPU. An empty variable requests nothing.
func checkVariables(cfg *drivers.TaskConfig) error {
	var set []string
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		if value := cfg.Env[name]; request.IsVariable(name) && value != "" {
			set = append(set, fmt.Sprintf("%s = %s", name, quoted(value)))
		}
	}
	if len(set) == 0 {
		return nil
	}
	return fmt.Errorf("the task's environment sets %s: %s; %s, and remove the variable from the env or template block",
		strings.Join(set, " and "), onlyWithoutNomad, requestAdvice)
}

// MisspelledVariables returns an event for each variable of a task's environment that is named like one of Tranche's and has no
// meaning.
func MisspelledVariables(cfg *drivers.TaskConfig) []string {
	var events []string
	for _, line := range request.Misspelled(slices.Collect(maps.Keys(cfg.Env))) {
		events = append(events, "GPU: "+line)
	}
	return events
}

// quoted quotes a value that may be of any length, at most a line of it.
func quoted(value string) string {
	const maxBytes = 64
	if len(value) <= maxBytes {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%q…", strings.ToValidUTF8(value[:maxBytes], "?"))
}

// CheckOptions refuses the options annotations and devices of a task if they request a GPU.
func CheckOptions(annotations map[string]string, devices []string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if IsRequestAnnotation(key) {
			errs = append(errs, fmt.Errorf("option annotations: %q: %s; %s, and remove the annotation", key, onlyWithoutNomad,
				requestAdvice))
		}
	}
	for _, device := range devices {
		if IsRequestDevice(device) {
			errs = append(errs, fmt.Errorf("option devices = %q: %s; %s, and remove the device", device, onlyWithoutNomad,
				requestAdvice))
		}
	}
	return errors.Join(errs...)
}

// IsRequestAnnotation reports whether an annotation with this key requests a GPU.
func IsRequestAnnotation(key string) bool {
	return slices.Contains([]string{request.MemoryAnnotation, request.GPUAnnotation, request.ComputeAnnotation}, key)
}

// IsRequestDevice reports whether a CDI device of this name requests a GPU.
func IsRequestDevice(name string) bool {
	vendor, class, _, err := parser.ParseQualifiedName(name)
	return err == nil && vendor == request.CDIVendor && class == request.CDIClass
}

// Unmet returns the event of a task without claims whose image requests a GPU in its own ENV; "" for others.
func (p *Prepared) Unmet(imageEnv []string) string {
	var names []string
	for _, entry := range imageEnv {
		if name, value, _ := strings.Cut(entry, "="); request.IsVariable(name) && value != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 || len(p.Claims) > 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("The image requests GPU memory by its %s, which has no effect in a task: %s",
		strings.Join(slices.Compact(names), " and "), requestAdvice)
}
