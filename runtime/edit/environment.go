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
	spec.Process.Env = CleanEnv(spec.Process.Env)
	return nil
}

// CleanEnv returns what Environment makes of an environment.
func CleanEnv(env []string) []string {
	env = slices.DeleteFunc(claim.WithoutTokens(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == claim.VisibleDevices || request.IsVariable(name)
	})
	return append(env, claim.VisibleDevices+"="+claim.NoDevices)
}
