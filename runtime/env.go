package runtime

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// environment takes the claim tokens out of the container's environment, where any of its processes could read and
// spend them, and what it asked for, which is answered and would have containers that it starts ask too. It keeps
// NVIDIA's own tools out: our edits have already brought the GPU, and theirs would bring it without its shadow. It leaves
// everything else as the job wants it.
type environment struct{}

// Modify edits process.env.
func (environment) Modify(spec *specs.Spec) error {
	answered(spec.Process)
	return nil
}

// answered edits the environment of a process of a container that has what it asked for.
func answered(process *specs.Process) {
	process.Env = slices.DeleteFunc(slices.Clone(process.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, claim.EnvPrefix) || name == claim.VisibleDevices || request.IsVariable(name)
	})
	process.Env = append(process.Env, claim.VisibleDevices+"="+claim.NoDevices)
}
