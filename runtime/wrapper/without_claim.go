package wrapper

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/nvidia"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
	"github.com/tranche-gpu/tranche/runtime/request"
)

// withoutClaim applies the policy for containers that request GPUs without a claim. It leaves alone those that request no
// GPU.
func withoutClaim(cfg runtime.Config, file *specFile) error {
	if cfg.WithoutClaim == runtime.WithoutClaimPass || isEdited(cfg, file.spec) {
		return nil
	}
	devices, err := nvidia.HostDevices()
	if err != nil {
		return err
	}
	requests := devices.Requests(file.spec)
	if len(requests) == 0 {
		return nil
	}
	if cfg.WithoutClaim != runtime.WithoutClaimVoid {
		return refuseWithoutClaim(requests)
	}
	if err := file.modify(withoutGPUs{devices: devices}); err != nil {
		return err
	}
	return file.write()
}

// refuseWithoutConfig returns why the configuration cannot be used if the container has claims or requests a GPU. All others start,
// with a line in the log.
func (inv invocation) refuseWithoutConfig(wrong error, hasClaims bool, file *specFile) error {
	if hasClaims {
		return wrong
	}
	devices, err := nvidia.HostDevices()
	if err != nil || len(devices.Requests(file.spec)) > 0 {
		return errors.Join(wrong, err)
	}
	_ = inv.logLine("warning", wrong.Error())
	return nil
}

// isEdited reports whether a spec was edited before: by the task driver, or by tranche-runtime for a create that failed
// later. An image cannot add hooks, and this hook binds a claim or fails.
func isEdited(cfg runtime.Config, spec *specs.Spec) bool {
	return slices.ContainsFunc(ocispec.Hooks(spec), func(hook *specs.Hook) bool {
		return hook.Path == cfg.HookPath && slices.Contains(hook.Args, "--claim")
	})
}

func refuseWithoutClaim(requests []string) error {
	return fmt.Errorf("the container requests GPUs by %s, but it has no claim: request a fraction (-e %s=8GiB, or a device block in Nomad), "+
		"start it without a GPU (-e %s=%s), or have the operator set without_claim = %q or %q in %s",
		strings.Join(requests, ", "), request.MemoryEnv, claim.VisibleDevices, claim.NoDevices,
		runtime.WithoutClaimVoid, runtime.WithoutClaimPass, runtime.DefaultConfigFile)
}

// withoutGPUs removes everything from a spec by which the container gets or requests GPUs.
type withoutGPUs struct {
	devices nvidia.Devices
}

// Modify edits process.env, hooks, mounts, devices and annotations.
func (w withoutGPUs) Modify(spec *specs.Spec) error {
	w.devices.Remove(spec)
	if spec.Process == nil {
		return nil
	}
	return edit.Environment{}.Modify(spec)
}
