package runtime

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"tranche.dev/tranche/claim"
)

// visibleDevices is what NVIDIA's own runtime and hook go by. With "void" they add nothing: our edits have already
// brought the GPU, and theirs would bring it without its shadow.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// environment takes the claim tokens out of the container's environment, where any of its processes could read and
// spend them, and keeps NVIDIA's own tools out. It leaves everything else as the job wants it.
type environment struct{}

// Modify edits process.env.
func (environment) Modify(spec *specs.Spec) error {
	spec.Process.Env = slices.DeleteFunc(slices.Clone(spec.Process.Env), func(entry string) bool {
		return strings.HasPrefix(entry, claim.EnvPrefix) || strings.HasPrefix(entry, visibleDevices+"=")
	})
	spec.Process.Env = append(spec.Process.Env, visibleDevices+"=void")
	return nil
}
