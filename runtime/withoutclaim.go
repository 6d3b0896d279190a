package runtime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
)

// What becomes of a container that asks for GPUs and holds no claim, as without_claim in the configuration has it.
const (
	// WithoutClaimDeny refuses it.
	WithoutClaimDeny = "deny"
	// WithoutClaimVoid starts it without a GPU.
	WithoutClaimVoid = "void"
	// WithoutClaimPass leaves it alone: it gets whole GPUs from whoever else gives them, NVIDIA's runtime for one.
	WithoutClaimPass = "pass"
)

// withoutClaim is the policy for a container that holds no claim. It leaves those alone that ask for no GPU.
func withoutClaim(cfg Config, file *specFile) error {
	if cfg.WithoutClaim == WithoutClaimPass || holdsClaim(cfg, file.spec) {
		return nil
	}
	nvidia, err := hostNVIDIAParts()
	if err != nil {
		return err
	}
	asked := nvidia.asks(file.spec)
	if len(asked) == 0 {
		return nil
	}
	if cfg.WithoutClaim != WithoutClaimVoid {
		return refuseWithoutClaim(asked)
	}
	if err := file.modify(withoutGPUs{nvidia: nvidia}); err != nil {
		return err
	}
	return file.write()
}

// holdsClaim tells whether a spec is one that was edited before: by the task driver, or by us for a create that failed
// later on. Images have no say in hooks, and this one binds a claim or fails.
func holdsClaim(cfg Config, spec *specs.Spec) bool {
	return slices.ContainsFunc(allHooks(spec), func(hook *specs.Hook) bool {
		return hook.Path == cfg.HookPath && slices.Contains(hook.Args, "--claim")
	})
}

func refuseWithoutClaim(asked []string) error {
	return fmt.Errorf("the container asks for GPUs by %s, but it holds no claim; ask for a fraction of one (a Nomad job by "+
		"its device block, others by -e %s=8GiB), or start it without a GPU (-e %s=%s, also where its image sets that "+
		"variable, as those of CUDA do; no --gpus and no device of NVIDIA's). The operator can have such containers "+
		"start without a GPU or with whole ones: without_claim = %q or %q in the configuration of tranche-runtime",
		strings.Join(asked, ", "), "TRANCHE_GPU_MEMORY", claim.VisibleDevices, claim.NoDevices, WithoutClaimVoid, WithoutClaimPass)
}

// withoutGPUs takes everything out of a spec by which the container asks for GPUs.
type withoutGPUs struct {
	nvidia nvidiaParts
}

// Modify edits process.env, hooks, mounts, devices and annotations.
func (w withoutGPUs) Modify(spec *specs.Spec) error {
	w.nvidia.takeOut(spec)
	if spec.Process == nil {
		return nil
	}
	return environment{}.Modify(spec)
}
