package runtime

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"tranche.dev/tranche/claim"
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

// gpuHooks are the programs that NVIDIA's own tools put into a spec as hooks, by the names of their files.
var gpuHooks = []string{
	"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli", "nvidia-cdi-hook", "nvidia-ctk",
}

const (
	// gpuNodes begins the path of every device node of the driver.
	gpuNodes = "/dev/nvidia"
	// gpuMounts holds a mount for each GPU that is asked for, which is another way to ask NVIDIA's tools.
	gpuMounts = "/var/run/nvidia-container-devices"
	// cdiAnnotations begins the annotations that ask for CDI devices.
	cdiAnnotations = "cdi.k8s.io/"
)

// withoutClaim is the policy for a container that holds no claim. It leaves those alone that ask for no GPU.
func withoutClaim(cfg Config, file *specFile) error {
	if cfg.WithoutClaim == WithoutClaimPass || holdsClaim(cfg, file.spec) {
		return nil
	}
	asked := asksForGPUs(file.spec)
	if len(asked) == 0 {
		return nil
	}
	if cfg.WithoutClaim != WithoutClaimVoid {
		return refuseWithoutClaim(asked)
	}
	if err := file.modify(withoutGPUs{}); err != nil {
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

// asksForGPUs lists by what a container asks for GPUs.
func asksForGPUs(spec *specs.Spec) []string {
	var asked []string
	if value := visibleDevices(spec); !isNoDevice(value) {
		asked = append(asked, fmt.Sprintf("%s=%s", claim.VisibleDevices, excerpt(value)))
	}
	for _, hook := range allHooks(spec) {
		if isGPUHook(*hook) {
			asked = append(asked, "the hook "+excerpt(path.Base(hook.Path)))
		}
	}
	for _, mount := range spec.Mounts {
		if isGPUMount(mount) {
			asked = append(asked, "a mount at "+excerpt(mount.Destination))
		}
	}
	if spec.Linux != nil {
		for _, device := range spec.Linux.Devices {
			if isGPUNode(device.Path) {
				asked = append(asked, "the device "+excerpt(device.Path))
			}
		}
	}
	for name, value := range spec.Annotations {
		if isGPUAnnotation(name, value) {
			asked = append(asked, "the annotation "+excerpt(name))
		}
	}
	return firstFew(asked)
}

// visibleDevices is the container's NVIDIA_VISIBLE_DEVICES. Of a variable that is set twice, the last counts.
func visibleDevices(spec *specs.Spec) string {
	if spec.Process == nil {
		return ""
	}
	for _, entry := range slices.Backward(spec.Process.Env) {
		if value, ok := strings.CutPrefix(entry, claim.VisibleDevices+"="); ok {
			return value
		}
	}
	return ""
}

// isNoDevice tells whether a value of NVIDIA_VISIBLE_DEVICES asks for no GPU. NVIDIA's tools read it so, too.
func isNoDevice(value string) bool {
	value = strings.TrimSpace(value)
	return value == "" || value == claim.NoDevices || value == "none"
}

func isGPUHook(hook specs.Hook) bool {
	return slices.Contains(gpuHooks, strings.TrimSuffix(path.Base(hook.Path), ".real"))
}

func isGPUNode(at string) bool { return strings.HasPrefix(containerPath(at), gpuNodes) }

func isGPUMount(mount specs.Mount) bool {
	at := containerPath(mount.Destination)
	return isBind(mount) && (isGPUNode(at) || isGPUNode(mount.Source)) ||
		at == gpuMounts || strings.HasPrefix(at, gpuMounts+"/")
}

func isGPUAnnotation(name, value string) bool {
	return strings.HasPrefix(name, cdiAnnotations) && strings.Contains(value, "nvidia.com/")
}

// allHooks are the hooks of a spec, of all kinds.
func allHooks(spec *specs.Spec) []*specs.Hook {
	var all []*specs.Hook
	for _, kind := range hookKinds(spec) {
		for i := range *kind {
			all = append(all, &(*kind)[i])
		}
	}
	return all
}

func hookKinds(spec *specs.Spec) []*[]specs.Hook {
	if spec.Hooks == nil {
		return nil
	}
	hooks := spec.Hooks
	return []*[]specs.Hook{
		&hooks.Prestart, //nolint:staticcheck // deprecated, and still what NVIDIA's runtime and Docker use
		&hooks.CreateRuntime, &hooks.CreateContainer, &hooks.StartContainer, &hooks.Poststart, &hooks.Poststop,
	}
}

// withoutGPUs takes everything out of a spec by which the container asks for GPUs.
type withoutGPUs struct{}

// Modify edits process.env, hooks, mounts, devices and annotations.
func (withoutGPUs) Modify(spec *specs.Spec) error {
	for _, kind := range hookKinds(spec) {
		*kind = slices.DeleteFunc(*kind, isGPUHook)
	}
	spec.Mounts = slices.DeleteFunc(spec.Mounts, isGPUMount)
	for name, value := range spec.Annotations {
		if isGPUAnnotation(name, value) {
			delete(spec.Annotations, name)
		}
	}
	if spec.Linux != nil {
		removeGPUNodes(spec.Linux)
	}
	if spec.Process == nil {
		return nil
	}
	return environment{}.Modify(spec)
}

// removeGPUNodes takes the device nodes away, and the rules of the cgroup that allow just these.
func removeGPUNodes(linux *specs.Linux) {
	var removed []specs.LinuxDevice
	linux.Devices = slices.DeleteFunc(linux.Devices, func(device specs.LinuxDevice) bool {
		if !isGPUNode(device.Path) {
			return false
		}
		removed = append(removed, device)
		return true
	})
	if linux.Resources == nil {
		return
	}
	linux.Resources.Devices = slices.DeleteFunc(linux.Resources.Devices, func(rule specs.LinuxDeviceCgroup) bool {
		return rule.Allow && rule.Major != nil && rule.Minor != nil &&
			slices.ContainsFunc(removed, func(device specs.LinuxDevice) bool {
				return device.Major == *rule.Major && device.Minor == *rule.Minor
			})
	})
}

// excerpt is the beginning of a text that the container's owner chose, in a form that is fit for a log.
func excerpt(text string) string {
	const most = 60
	if len(text) > most {
		text = text[:most] + "…"
	}
	return fmt.Sprintf("%q", text)
}

// firstFew keeps an error short.
func firstFew(all []string) []string {
	const most = 4
	slices.Sort(all)
	if len(all) > most {
		all = append(all[:most:most], fmt.Sprintf("and %d more", len(all)-most))
	}
	return all
}
