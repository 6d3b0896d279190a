package edit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/nvidia"
)

// hookTimeoutSeconds bounds a hook's time. Binding takes milliseconds, but waiting for the ledger's lock may take longer when
// many containers start at once. It is more than hooks.Patience, so that the hook reports what it waited for.
const hookTimeoutSeconds = 30

// hookEnv returns the whole environment of a hook. It must not be empty: a runtime gives a hook without environment its own,
// and that of runc's init has the image's variables, LD_PRELOAD included, which would take effect as root on the host.
func hookEnv() []string {
	return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
}

// oneProcessor has Go's runtime start fewer threads in tranche-hook, which does one thing after another. It saves a tenth of
// the hook's processor time.
const oneProcessor = "GOMAXPROCS=1"

// BindingHooks has tranche-hook bind the claims to the container before it starts and release them when it is gone. It passes
// the claims' IDs: a token must not be on a command line.
type BindingHooks struct {
	Path     string
	StateDir string
	RunDir   string
	// CLIPath and DriverRoot are the node's.
	CLIPath    string
	DriverRoot string
	Claims     []Claim
}

// Modify appends a prestart and a poststop hook.
//
//nolint:staticcheck // prestart is deprecated in favour of createRuntime, but it is the one that all runtimes know
func (b BindingHooks) Modify(spec *specs.Spec) error {
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	// The hook needs the init process's ID, and must fail the container's creation rather than its start.
	prestart := b.hook("prestart")
	if slices.ContainsFunc(b.Claims, func(c Claim) bool { return c.ByDriver() }) {
		prestart.Args = append(prestart.Args, "--driver-limits-by", b.CLIPath, "--driver-root", b.DriverRoot)
	}
	spec.Hooks.Prestart = append(spec.Hooks.Prestart, prestart)
	spec.Hooks.Poststop = append(spec.Hooks.Poststop, b.hook("poststop"))
	return nil
}

func (b BindingHooks) hook(role string) specs.Hook {
	args := []string{filepath.Base(b.Path), role, "--state-dir", b.StateDir, "--run-dir", b.RunDir}
	for _, c := range b.Claims {
		args = append(args, "--claim", c.ID)
	}
	timeout := hookTimeoutSeconds
	return specs.Hook{Path: b.Path, Args: args, Env: append(hookEnv(), oneProcessor), Timeout: &timeout}
}

// appendCreateContainer appends the hook that checks the container once all its mounts are made, after the hooks of others.
func (b BindingHooks) appendCreateContainer(spec *specs.Spec, args ...string) {
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	hook := b.hook("createContainer")
	hook.Args = append(hook.Args, args...)
	for _, node := range nvidia.NodePaths(spec) { // only the claims' are left: see nvidiaRemoval
		hook.Args = append(hook.Args, "--gpu-node", node)
	}
	spec.Hooks.CreateContainer = append(spec.Hooks.CreateContainer, hook)
}

// checkHook returns an error if the hook cannot be run, since the runtime's own error would not name the setting.
func checkHook(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("find the hook %s: %w; install tranche-hook there, or set hook_path", path, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("find the hook %s: it is not executable (%s); set hook_path to tranche-hook", path, info.Mode())
	}
	return nil
}
