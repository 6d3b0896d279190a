package edit

import "github.com/opencontainers/runtime-spec/specs-go"

// ForeignHooks gives an environment to createContainer hooks of others that have none. A runtime runs them as root from
// within its init process, which has the container's environment by then, so that an image's LD_PRELOAD would name a library
// that runs as root outside the container (CVE-2025-23266).
//
// Hooks of startContainer run inside the container and cannot harm the host; the others have the environment of the
// runtime's caller.
type ForeignHooks struct{}

// Modify edits the createContainer hooks without an environment.
func (ForeignHooks) Modify(spec *specs.Spec) error {
	if spec.Hooks == nil {
		return nil
	}
	for i := range spec.Hooks.CreateContainer {
		if hook := &spec.Hooks.CreateContainer[i]; len(hook.Env) == 0 {
			hook.Env = hookEnv()
		}
	}
	return nil
}
