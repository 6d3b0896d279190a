package edit

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// Environment removes from the container's environment the claim tokens, which any of its processes could use, and its
// request, which containers that it starts would repeat. It sets NVIDIA_VISIBLE_DEVICES to void, since NVIDIA's tools would
// add the GPU without its shadow.
type Environment struct{}

// Modify edits process.env.
func (Environment) Modify(spec *specs.Spec) error {
	CleanProcess(spec.Process)
	return nil
}

// CleanProcess does the same for any process of a container with claims.
func CleanProcess(process *specs.Process) {
	process.Env = slices.DeleteFunc(slices.Clone(process.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, claim.EnvPrefix) || name == claim.VisibleDevices || request.IsVariable(name)
	})
	process.Env = append(process.Env, claim.VisibleDevices+"="+claim.NoDevices)
}
