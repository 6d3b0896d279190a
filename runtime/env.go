package runtime

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/runtime/ask"
)

// environment takes the claim tokens out of the container's environment, where any of its processes could read and
// spend them, and what it asked for, which is answered and would have containers that it starts ask too. It keeps NVIDIA's own tools out: our edits have already brought the GPU, and theirs would bring it without
// its shadow. It leaves everything else as the job wants it.
type environment struct{}

// Modify edits process.env.
func (environment) Modify(spec *specs.Spec) error {
	spec.Process.Env = slices.DeleteFunc(slices.Clone(spec.Process.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, claim.EnvPrefix) || name == claim.VisibleDevices || ask.Variable(name)
	})
	spec.Process.Env = append(spec.Process.Env, claim.VisibleDevices+"="+claim.NoDevices)
	return nil
}
