package runtime

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// hookTimeoutSeconds bounds a hook's time. Binding takes milliseconds; what may take longer is the wait for the
// ledger's lock when many containers start at once. It is more than hooks.Patience, so that the hook says what it waited for.
const hookTimeoutSeconds = 30

// hookEnv is the whole environment of a hook. It is always stated: a runtime gives a hook without one its own, and that
// of runc's init holds what the image asked for, LD_PRELOAD included, which would then run as root on the host.
func hookEnv() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
}

// bindingHooks has tranche-hook bind the claims to the container before it starts and release them when it is gone.
// The claims go by their IDs: a token has no business on a command line.
type bindingHooks struct {
	path     string
	stateDir string
	runDir   string
	grants   []Grant
}

// Modify appends a prestart and a poststop hook.
//
//nolint:staticcheck // prestart is deprecated in favour of createRuntime, but it is the one that all runtimes know
func (b bindingHooks) Modify(spec *specs.Spec) error {
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	// The hook needs the init process's ID, and must fail the container's creation rather than its start.
	spec.Hooks.Prestart = append(spec.Hooks.Prestart, b.hook("prestart"))
	spec.Hooks.Poststop = append(spec.Hooks.Poststop, b.hook("poststop"))
	return nil
}

func (b bindingHooks) hook(role string) specs.Hook {
	args := []string{filepath.Base(b.path), role, "--state-dir", b.stateDir, "--run-dir", b.runDir}
	for _, grant := range b.grants {
		args = append(args, "--claim", grant.Claim.ID)
	}
	timeout := hookTimeoutSeconds
	return specs.Hook{Path: b.path, Args: args, Env: hookEnv(), Timeout: &timeout}
}

// appendCreateContainer has the hook look at the container when all its mounts are made, after the hooks of others.
func (b bindingHooks) appendCreateContainer(spec *specs.Spec, args ...string) {
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	hook := b.hook("createContainer")
	hook.Args = append(hook.Args, args...)
	for _, node := range NodePaths(spec) { // those of the claims alone: see besideNVIDIA
		hook.Args = append(hook.Args, "--gpu-node", node)
	}
	spec.Hooks.CreateContainer = append(spec.Hooks.CreateContainer, hook)
}

// checkHook makes sure that the hook can be run: a runtime that can't would say so in a way that leads nobody here.
func checkHook(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("find the hook %s: %w; install tranche-hook there or set hook_path to where it is", path, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("find the hook %s: it is not executable (%s); set hook_path to tranche-hook", path, info.Mode())
	}
	return nil
}
