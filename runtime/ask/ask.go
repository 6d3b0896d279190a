// Package ask is how a container asks for a fraction of a GPU where no scheduler did it for the container: by its
// environment, by annotations, or by a CDI device. All of it comes from whoever wrote the image or starts the container,
// and is read as such: what is not understood is refused, and nothing is guessed.
package ask

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/runtime/selector"
)

// The environment variables and annotations by which a container asks. Empty ones ask for nothing, so that what an image
// asks for can be taken back when a container is made of it.
const (
	MemoryEnv         = "TRANCHE_GPU_MEMORY"
	GPUEnv            = "TRANCHE_GPU"
	ComputeEnv        = "TRANCHE_GPU_COMPUTE"
	MemoryAnnotation  = "dev.tranche/gpu-memory"
	GPUAnnotation     = "dev.tranche/gpu"
	ComputeAnnotation = "dev.tranche/gpu-compute"
)

// maxValueBytes bounds what an ask may be long. A container's environment may be of megabytes, and errors quote it.
const maxValueBytes = 256

// Ask is a container's wish for a fraction of one GPU.
type Ask struct {
	// MemoryBytes is the limit.
	MemoryBytes uint64
	// GPU says which GPU it may be.
	GPU selector.Selector
}

// wish is one value, and where it was found, as errors are to name it.
type wish struct{ where, value string }

// Of reads what a container asks for in its environment and annotations; false if it asks for nothing. Where it asks in
// several ways, all have to say the same.
func Of(env, annotations map[string]string) (Ask, bool, error) {
	memory := wishes(env, annotations, MemoryEnv, MemoryAnnotation)
	memory = append(memory, cdiWishes(env)...)
	gpu := wishes(env, annotations, GPUEnv, GPUAnnotation)
	compute := wishes(env, annotations, ComputeEnv, ComputeAnnotation)
	for _, w := range slices.Concat(memory, gpu, compute) {
		if err := w.check(); err != nil {
			return Ask{}, false, err
		}
	}
	if len(compute) > 0 {
		return Ask{}, false, fmt.Errorf("%s: this version of Tranche limits memory only and has no shares of compute to "+
			"give; remove it", compute[0])
	}
	if len(memory) == 0 {
		if len(gpu) > 0 {
			return Ask{}, false, fmt.Errorf("%s says which GPU, but nothing says how much of its memory; set %s too, "+
				"such as %s=8GiB", gpu[0], MemoryEnv, MemoryEnv)
		}
		return Ask{}, false, nil
	}
	bytes, err := agreed(memory, memsize.ParseGPU)
	if err != nil {
		return Ask{}, false, err
	}
	which, err := agreed(gpu, selector.Parse)
	if err != nil {
		return Ask{}, false, err
	}
	return Ask{MemoryBytes: bytes, GPU: which}, true, nil
}

// wishes are the values of a variable and an annotation that are there and not empty.
func wishes(env, annotations map[string]string, variable, annotation string) []wish {
	var all []wish
	if value := env[variable]; value != "" {
		all = append(all, wish{"environment variable " + variable, value})
	}
	if value := annotations[annotation]; value != "" {
		all = append(all, wish{"annotation " + annotation, value})
	}
	return all
}

// String quotes the value, which is anybody's, and not more than a line of it.
func (w wish) String() string {
	const shown = 64
	if len(w.value) > shown {
		return fmt.Sprintf("%s = %q…", w.where, strings.ToValidUTF8(w.value[:shown], "?"))
	}
	return fmt.Sprintf("%s = %q", w.where, w.value)
}

func (w wish) check() error {
	switch {
	case len(w.value) > maxValueBytes:
		return fmt.Errorf("%s is %d bytes long, and nothing that can be asked for is longer than %d", w, len(w.value),
			maxValueBytes)
	case !utf8.ValidString(w.value) || strings.ContainsRune(w.value, utf8.RuneError):
		return fmt.Errorf("%s is not valid UTF-8", w)
	}
	return nil
}

// agreed reads wishes for the same thing, which is T's zero value without any.
func agreed[T comparable](all []wish, parse func(string) (T, error)) (T, error) {
	var first, none T
	for i, w := range all {
		value, err := parse(w.value)
		if err != nil {
			return none, fmt.Errorf("%s: %w", w.where, err)
		}
		if i == 0 {
			first = value
		} else if value != first {
			return none, fmt.Errorf("the container asks for two different things: %s and %s; ask once, or for the same",
				all[0], w)
		}
	}
	return first, nil
}

// Variable tells whether an environment variable is one by which containers ask.
func Variable(name string) bool {
	return name == MemoryEnv || name == GPUEnv || name == ComputeEnv || strings.HasPrefix(name, cdiPrefix)
}

// nomadVariables are those that Nomad sets for each task; a job may unset some.
var nomadVariables = []string{"NOMAD_ALLOC_ID", "NOMAD_ALLOC_DIR", "NOMAD_TASK_DIR", "NOMAD_SECRETS_DIR", "NOMAD_TASK_NAME"}

// Policy is who may ask.
type Policy string

// The policies.
const (
	// On lets every container ask but those of Nomad's tasks.
	On Policy = "on"
	// Always lets those ask, too.
	Always Policy = "always"
	// Off lets nobody ask.
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

// Allow refuses an ask that the policy is against.
func (p Policy) Allow(env map[string]string) error {
	switch p {
	case Always:
		return nil
	case Off:
		return errors.New("the container asks for a fraction of a GPU, which this node gives to Nomad's tasks only; " +
			"the operator can allow others with local_claims = \"on\"")
	}
	for _, name := range nomadVariables {
		if _, ok := env[name]; ok {
			return fmt.Errorf("the container is a Nomad task's (it has %s) and asks by %s; a task asks with the block "+
				"device \"nvidia/slice\" of its jobspec, so that Nomad knows: use that and remove the other, or set it to "+
				"nothing if the image brings it; the operator can allow both with local_claims = \"always\"",
				name, strings.Join(askedBy(env), " and "))
		}
	}
	return nil
}

// askedBy names the variables by which a container asks.
func askedBy(env map[string]string) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if Variable(name) && env[name] != "" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return []string{"annotations"}
	}
	return names
}
