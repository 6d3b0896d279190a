// Package request reads the fraction of a GPU that a container requests without a scheduler, by its environment, by
// annotations or by a CDI device, and reserves it. All input is untrusted: it comes from the image or from the container's user,
// and what is not understood is refused.
package request

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// The environment variables and annotations by which a container requests a fraction. Empty ones request nothing, so that
// whoever starts a container can cancel the request of its image.
const (
	MemoryEnv         = "TRANCHE_GPU_MEMORY"
	GPUEnv            = "TRANCHE_GPU"
	ComputeEnv        = "TRANCHE_GPU_COMPUTE"
	MemoryAnnotation  = "dev.tranche/gpu-memory"
	GPUAnnotation     = "dev.tranche/gpu"
	ComputeAnnotation = "dev.tranche/gpu-compute"
)

// maxValueBytes bounds the length of a value. A container's environment may have megabytes, and errors quote it.
const maxValueBytes = 256

// Request is a container's request for a fraction of one GPU.
type Request struct {
	// MemoryBytes is the limit.
	MemoryBytes uint64
	// GPU selects the GPUs that it may be on.
	GPU gpuinfo.Selector
}

// option is one value and its source, which errors name.
type option struct{ where, value string }

// Parse returns the request in a container's environment and annotations, and whether there is one. If it is made in
// several ways, all have to be equal.
func Parse(env, annotations map[string]string) (Request, bool, error) {
	memory := options(env, annotations, MemoryEnv, MemoryAnnotation)
	memory = append(memory, cdiOptions(env)...)
	gpu := options(env, annotations, GPUEnv, GPUAnnotation)
	for _, w := range slices.Concat(memory, gpu) {
		if err := w.check(); err != nil {
			return Request{}, false, err
		}
	}
	if len(memory) == 0 {
		if len(gpu) > 0 {
			return Request{}, false, fmt.Errorf("%s selects a GPU without an amount of memory; set %s too, "+
				"such as %s=8GiB", gpu[0], MemoryEnv, MemoryEnv)
		}
		return Request{}, false, nil
	}
	bytes, err := agreed(memory, size.ParseGPU)
	if err != nil {
		return Request{}, false, err
	}
	which, err := agreed(gpu, gpuinfo.ParseSelector)
	if err != nil {
		return Request{}, false, err
	}
	return Request{MemoryBytes: bytes, GPU: which}, true, nil
}

// ParseCompute returns what a container's environment and annotations state of its part of a GPU's time, and where. It counts
// for claims that Nomad reserved for the container, too.
func ParseCompute(env, annotations map[string]string) (r compute.Request, where string, err error) {
	stated := options(env, annotations, ComputeEnv, ComputeAnnotation)
	for _, w := range stated {
		if err := w.check(); err != nil {
			return compute.Request{}, "", err
		}
	}
	if len(stated) == 0 {
		return compute.Request{}, "", nil
	}
	r, err = agreed(stated, compute.Parse)
	return r, stated[0].where, err
}

// options returns the non-empty values of a variable and an annotation.
func options(env, annotations map[string]string, variable, annotation string) []option {
	var all []option
	if value := env[variable]; value != "" {
		all = append(all, option{"environment variable " + variable, value})
	}
	if value := annotations[annotation]; value != "" {
		all = append(all, option{"annotation " + annotation, value})
	}
	return all
}

// String quotes at most 64 bytes of the value, which is untrusted.
func (w option) String() string {
	const shown = 64
	if len(w.value) > shown {
		return fmt.Sprintf("%s = %q…", w.where, strings.ToValidUTF8(w.value[:shown], "?"))
	}
	return fmt.Sprintf("%s = %q", w.where, w.value)
}

func (w option) check() error {
	switch {
	case len(w.value) > maxValueBytes:
		return fmt.Errorf("%s is %d bytes long, and may be at most %d", w, len(w.value),
			maxValueBytes)
	case !utf8.ValidString(w.value) || strings.ContainsRune(w.value, utf8.RuneError):
		return fmt.Errorf("%s is not valid UTF-8", w)
	}
	return nil
}

// agreed parses options that have to be equal, and returns T's zero value if there are none.
func agreed[T comparable](all []option, parse func(string) (T, error)) (T, error) {
	var first, none T
	for i, w := range all {
		value, err := parse(w.value)
		if err != nil {
			return none, fmt.Errorf("%s: %w", w.where, err)
		}
		if i == 0 {
			first = value
		} else if value != first {
			return none, fmt.Errorf("the container requests two different things: %s and %s; remove one of them",
				all[0], w)
		}
	}
	return first, nil
}

// IsVariable reports whether an environment variable is part of a request.
func IsVariable(name string) bool {
	return name == MemoryEnv || name == GPUEnv || name == ComputeEnv || strings.HasPrefix(name, cdiPrefix)
}

// nomadVariables are variables that Nomad sets for each task; a job may unset some.
var nomadVariables = []string{"NOMAD_ALLOC_ID", "NOMAD_ALLOC_DIR", "NOMAD_TASK_DIR", "NOMAD_SECRETS_DIR", "NOMAD_TASK_NAME"}

// Policy decides which containers may make requests.
type Policy string

// The policies.
const (
	// On allows requests of all containers except those of Nomad tasks.
	On Policy = "on"
	// Always allows requests of all containers.
	Always Policy = "always"
	// Off allows no requests.
	Off Policy = "off"
)

// ParsePolicy reads a policy; an empty text is On.
func ParsePolicy(text string) (Policy, error) {
	switch p := Policy(text); p {
	case "":
		return On, nil
	case On, Always, Off:
		return p, nil
	}
	return "", fmt.Errorf("%q is none of \"on\", \"always\" and \"off\"", text)
}

// Allow returns an error if the policy does not allow a container with this environment to make a request.
func (p Policy) Allow(env map[string]string) error {
	switch p {
	case Always:
		return nil
	case Off:
		return errors.New("the container requests a fraction of a GPU, which this node gives to Nomad tasks only; " +
			"the operator can allow others with local_claims = \"on\"")
	}
	for _, name := range nomadVariables {
		if _, ok := env[name]; ok {
			return fmt.Errorf("the container belongs to a Nomad task (it has %s) and requests a fraction of a GPU by %s; request it by the "+
				"block device \"nvidia/slice\" of the jobspec instead, and remove the other or set it to nothing if the image "+
				"sets it; the operator can allow both with local_claims = \"always\"",
				name, strings.Join(variablesSet(env), " and "))
		}
	}
	return nil
}

// variablesSet names the variables in an environment that are part of a request.
func variablesSet(env map[string]string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if IsVariable(name) && env[name] != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return []string{"annotations"}
	}
	return names
}
