package edit

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

// cudaCompatHook is the CDI hook that makes the loader prefer an image's own libcuda for forward compatibility. That library
// has no shadow in front of it, so a container with a limit does not get the hook.
const cudaCompatHook = "enable-cuda-compat"

// cudaMemoryLimitsHook is the CDI hook that has the driver limit a container's memory to the value of a variable, which the
// job may set.
const cudaMemoryLimitsHook = "apply-cuda-memory-limits"

// deviceEdits adds the GPUs of the claims to the container: device nodes, the driver's files, NVIDIA's hooks. It first
// removes GPUs that others have added.
type deviceEdits struct {
	edits   *cdi.ContainerEdits
	removal nvidiaRemoval
	allowed capabilities
	// limited reports whether the container has a limit.
	limited bool
	// cliPath is the command tranche, which runs NVIDIA's hooks.
	cliPath string
}

// Modify applies the CDI edits for the driver capabilities that the container requests.
func (d deviceEdits) Modify(spec *specs.Spec) error {
	asked, err := askedCapabilities(spec, d.allowed)
	if err != nil {
		return err
	}
	if err := d.removal.Modify(spec); err != nil {
		return err
	}
	if err := batched(restricted(d.edits, asked, d.limited), d.cliPath).Apply(spec); err != nil {
		return fmt.Errorf("inject the GPU by CDI: %w", err)
	}
	return nil
}

// newDevices takes the CDI edits for the GPUs of the claims from the node's CDI specs if these have all of the GPUs, and
// otherwise from a spec that is generated from the driver root.
func newDevices(ctx context.Context, node Node, claims []Claim) (Modifier, error) {
	devices, missing := findDevices(node, claims)
	found := merge(devices)
	source := "the CDI specs in " + strings.Join(node.CDISpecDirs, " and ")
	if missing != nil {
		node.Logger.Debug("no CDI spec on the node names all GPUs, generating one", "reason", missing)
		var err error
		if found, err = generatedEdits(ctx, node, claims); err != nil {
			return nil, fmt.Errorf("%w; and none can be generated: %w", missing, err)
		}
		source = "the CDI spec generated from the driver root " + node.DriverRoot
	}
	limited := anyShadowed(claims)
	edits := hardened(found, limited)
	if limited && !slices.ContainsFunc(edits.Mounts, func(m *cdispecs.Mount) bool {
		return shadow.SONAME(m.ContainerPath) == shadow.CUDA
	}) {
		return nil, fmt.Errorf("inject the GPU by CDI: %s mounts no libcuda.so.* for %s, so there is no "+
			"library to limit; install the GPU driver in the driver root %s, or set driver_root to where it is",
			source, deviceNames(claims), node.DriverRoot)
	}
	removal, err := newNVIDIARemoval(edits)
	if err != nil {
		return nil, err
	}
	allowed, err := node.allowedCapabilities()
	if err != nil {
		return nil, err
	}
	return deviceEdits{edits: edits, removal: removal, allowed: allowed, limited: limited, cliPath: node.CLIPath}, nil
}

// findDevices finds the GPU of each claim in the node's CDI specs, by UUID. The index may have changed since the claim was
// made, so that the container would get another GPU.
func findDevices(node Node, claims []Claim) ([]*cdi.Device, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(node.CDISpecDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read the CDI specs in %s: %w", strings.Join(node.CDISpecDirs, ", "), err)
	}
	var devices []*cdi.Device
	for _, c := range claims {
		device := cache.GetDevice(cdiKind + "=" + c.GPU.UUID)
		if device == nil {
			return nil, fmt.Errorf("no CDI spec in %s names %s=%s%s", strings.Join(node.CDISpecDirs, " or "),
				cdiKind, c.GPU.UUID, specErrors(cache))
		}
		err := checkCurrent(device, procDriver)
		if err == nil {
			err = checkInstance(device.ContainerEdits.DeviceNodes, c.MIG, procDriver)
		}
		if err != nil {
			node.Logger.Warn("CDI spec of the node not used", "reason", err)
			return nil, err
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// specErrors lists the CDI specs that could not be read, since that may be why a GPU was not found.
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

// merge joins the edits of the devices and of their specs, each once.
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

// hardened removes the hooks that would bypass the shadow, if there is a limit, or let the job set its own limit, and gives
// an environment to hooks without one.
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

func deviceNames(claims []Claim) string {
	var names []string
	for _, c := range claims {
		names = append(names, cdiKind+"="+c.GPU.UUID)
	}
	return strings.Join(names, ", ")
}
