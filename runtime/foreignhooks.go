package runtime

import "github.com/opencontainers/runtime-spec/specs-go"

// foreignHooks gives an environment to those hooks that others have put into the spec without one and that a runtime
// runs as root from within its own init process. That process has the container's environment by then, so an image's
// LD_PRELOAD would name a library that runs as root outside the container (CVE-2025-23266).
//
// Hooks of startContainer run inside the container, which cannot harm the host by them; the others have the environment
// of whoever called the runtime.
type foreignHooks struct{}

// Modify edits the createContainer hooks that state no environment.
func (foreignHooks) Modify(spec *specs.Spec) error {
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
