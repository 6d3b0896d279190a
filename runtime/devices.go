package runtime

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// cdiKind is the kind of the CDI devices that are GPUs.
const cdiKind = "nvidia.com/gpu"

// cudaCompatHook is the CDI hook that makes the loader prefer the libcuda that an image carries for forward
// compatibility. That library has no shadow in front of it, so a container with a limit does without the hook.
const cudaCompatHook = "enable-cuda-compat"

// cudaMemoryLimitsHook is the CDI hook that has the driver limit a container's memory to what a variable of the job's
// says. What a job may use is not the job's to say.
const cudaMemoryLimitsHook = "apply-cuda-memory-limits"

// deviceEdits brings the GPUs of the grants into the container: device nodes, the driver's files, NVIDIA's hooks. What
// others did to bring GPUs goes first.
type deviceEdits struct {
	edits   *cdi.ContainerEdits
	beside  besideNVIDIA
	allowed capabilities
	// limited says that the container is held to a limit.
	limited bool
	// cliPath is the command tranche, which runs hooks of NVIDIA's.
	cliPath string
}

// Modify applies the CDI edits, as far as the container asks for what they bring.
func (d deviceEdits) Modify(spec *specs.Spec) error {
	asked, err := askedCapabilities(spec, d.allowed)
	if err != nil {
		return err
	}
	if err := d.beside.Modify(spec); err != nil {
		return err
	}
	if err := batched(restricted(d.edits, asked, d.limited), d.cliPath).Apply(spec); err != nil {
		return fmt.Errorf("inject the GPU by CDI: %w", err)
	}
	return nil
}

// newDeviceEdits finds the CDI edits for the GPUs of the grants: in the node's own CDI specs where these name all of
// the GPUs, else in a spec that is generated from the driver root.
func newDeviceEdits(ctx context.Context, cfg Config, grants []Grant) (Modifier, error) {
	devices, missing := findDevices(cfg, grants)
	found := merge(devices)
	source := "the CDI specs in " + strings.Join(cfg.CDISpecDirs, " and ")
	if missing != nil {
		cfg.Logger.Debug("no CDI spec on the node names all GPUs, generating one", "reason", missing)
		var err error
		if found, err = generatedEdits(ctx, cfg, grants); err != nil {
			return nil, fmt.Errorf("%w; and none can be generated: %w", missing, err)
		}
		source = "the CDI spec generated from the driver root " + cfg.DriverRoot
	}
	limited := anyLimited(grants)
	edits := hardened(found, limited)
	if limited && !slices.ContainsFunc(edits.Mounts, func(m *cdispecs.Mount) bool {
		return shadow.SONAME(m.ContainerPath) == shadow.CUDA
	}) {
		return nil, fmt.Errorf("inject the GPU by CDI: %s mounts no libcuda.so.* for %s, so there is nothing to hold to "+
			"a limit; install the GPU driver in the driver root %s, or set driver_root to where it is",
			source, deviceNames(grants), cfg.DriverRoot)
	}
	beside, err := newBesideNVIDIA(edits)
	if err != nil {
		return nil, err
	}
	allowed, err := cfg.allowedCapabilities()
	if err != nil {
		return nil, err
	}
	return deviceEdits{edits: edits, beside: beside, allowed: allowed, limited: limited, cliPath: cfg.CLIPath}, nil
}

// findDevices finds each grant's GPU in the node's CDI specs, by UUID. An index is no name for it: GPUs may be numbered
// otherwise now than when the claim was made, and the container would get somebody else's.
func findDevices(cfg Config, grants []Grant) ([]*cdi.Device, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(cfg.CDISpecDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read the CDI specs in %s: %w", strings.Join(cfg.CDISpecDirs, ", "), err)
	}
	var devices []*cdi.Device
	for _, grant := range grants {
		device := cache.GetDevice(cdiKind + "=" + grant.Claim.GPU.UUID)
		if device == nil {
			return nil, fmt.Errorf("no CDI spec in %s names %s=%s%s", strings.Join(cfg.CDISpecDirs, " or "),
				cdiKind, grant.Claim.GPU.UUID, specErrors(cache))
		}
		err := checkCurrent(device, procDriver)
		if err == nil {
			err = checkInstance(device.ContainerEdits.DeviceNodes, grant.Claim.MIG, procDriver)
		}
		if err != nil {
			cfg.Logger.Warn("a CDI spec of the node is left aside", "reason", err)
			return nil, err
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// specErrors says what is wrong with the CDI specs that were read, since that may be why a GPU was not found.
func specErrors(cache *cdi.Cache) string {
	var all []string
	for path, errs := range cache.GetErrors() {
		for _, err := range errs {
			all = append(all, fmt.Sprintf("%s: %v", path, err))
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return " (not read: " + strings.Join(all, "; ") + ")"
}

// merge collects what the devices need: each device's edits once, and those of the specs that they are from.
func merge(devices []*cdi.Device) *cdi.ContainerEdits {
	merged := &cdi.ContainerEdits{ContainerEdits: &cdispecs.ContainerEdits{}}
	seenSpecs := map[*cdi.Spec]bool{}
	seenDevices := map[*cdi.Device]bool{}
	for _, device := range devices {
		if spec := device.GetSpec(); !seenSpecs[spec] {
			seenSpecs[spec] = true
			merged.Append(&cdi.ContainerEdits{ContainerEdits: &spec.ContainerEdits})
		}
		if !seenDevices[device] {
			seenDevices[device] = true
			merged.Append(&cdi.ContainerEdits{ContainerEdits: &device.ContainerEdits})
		}
	}
	return merged
}

// hardened leaves out the hooks that would lead past the shadow, where there is one, or let the job say what it may use, and gives an
// environment to hooks that state none.
func hardened(edits *cdi.ContainerEdits, limited bool) *cdi.ContainerEdits {
	var hooks []*cdispecs.Hook
	for _, hook := range edits.Hooks {
		if limited && slices.Contains(hook.Args, cudaCompatHook) || slices.Contains(hook.Args, cudaMemoryLimitsHook) {
			continue
		}
		if len(hook.Env) == 0 {
			withEnv := *hook
			withEnv.Env = hookEnv()
			hook = &withEnv
		}
		hooks = append(hooks, hook)
	}
	edits.Hooks = hooks
	return edits
}

func deviceNames(grants []Grant) string {
	var names []string
	for _, grant := range grants {
		names = append(names, cdiKind+"="+grant.Claim.GPU.UUID)
	}
	return strings.Join(names, ", ")
}
