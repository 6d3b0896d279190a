package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/driver/gpu"
)

// nvidiaVendor is the vendor in the names of NVIDIA's CDI devices, or the end of it.
const nvidiaVendor = "nvidia.com"

// withCDIDevices adds the CDI devices that the task names, as the specifications on the node describe them.
func withCDIDevices(options *TaskConfig, plugin *Config) oci.SpecOpts {
	var names []string
	for _, entry := range options.Devices {
		if parser.IsQualifiedName(entry) {
			names = append(names, entry)
		}
	}
	if len(names) == 0 {
		return unchanged
	}
	return specOption(func(s *Spec) error {
		dirs := plugin.RuntimeConfig().CDISpecDirs
		cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return fmt.Errorf("option devices = %q: read the CDI specifications in %q: %w", names, dirs, err)
		}
		for _, name := range names {
			if err := plugin.checkCDIDevice(name, cache.GetDevice(name)); err != nil {
				return errors.Join(err, cdiSpecErrors(cache))
			}
		}
		if _, err := cache.InjectDevices(s, names...); err != nil {
			return fmt.Errorf("option devices = %q: %w", names, err)
		}
		hardenHooks(s)
		return nil
	})
}

// cdiSpecErrors returns which specifications could not be read: the device may be in one of them.
func cdiSpecErrors(cache *cdi.Cache) error {
	var errs []error
	for file, of := range cache.GetErrors() {
		errs = append(errs, fmt.Errorf("CDI specification %s: %w", file, errors.Join(of...)))
	}
	return errors.Join(errs...)
}

// checkCDIName makes sure that the node allows a CDI device, as far as its name shows that.
func (c *Config) checkCDIName(name string) error {
	vendor, _, _, err := parser.ParseQualifiedName(name)
	if err != nil {
		return fmt.Errorf("option devices = %q: %w", name, err)
	}
	if gpu.IsRequestDevice(name) {
		return nil // gpu.CheckOptions refuses it, and says what to write instead.
	}
	return c.allowCDI(name, vendor == nvidiaVendor || strings.HasSuffix(vendor, "."+nvidiaVendor))
}

// checkCDIDevice makes sure that the node has a CDI device and allows it. One that brings a GPU's device node is a GPU,
// whatever its name.
func (c *Config) checkCDIDevice(name string, device *cdi.Device) error {
	if err := c.checkCDIName(name); err != nil {
		return err
	}
	if device == nil {
		return fmt.Errorf("option devices = %q: no CDI specification in %q names such a device", name, c.RuntimeConfig().CDISpecDirs)
	}
	nodes := slices.Concat(device.ContainerEdits.DeviceNodes, device.GetSpec().ContainerEdits.DeviceNodes)
	return c.allowCDI(name, slices.ContainsFunc(nodes, func(node *cdispecs.DeviceNode) bool {
		return strings.HasPrefix(node.Path, gpuNodes) || strings.HasPrefix(node.HostPath, gpuNodes)
	}))
}

// allowCDI is an error unless a pattern of allow_devices fits the name. A GPU takes one that names its vendor: see
// allowsDevice.
func (c *Config) allowCDI(name string, gpu bool) error {
	vendor, _, _ := strings.Cut(name, "/")
	for _, pattern := range c.AllowDevices {
		if gpu && !strings.HasPrefix(pattern, vendor+"/") {
			continue
		}
		if fits, err := path.Match(pattern, name); err == nil && fits {
			return nil
		}
	}
	return fmt.Errorf("option devices = %q: this node does not allow it, but only %q; the operator can allow it with the "+
		"plugin's allow_devices%s", name, c.AllowDevices, gpuHint(gpu))
}

// hardenHooks gives an environment to the hooks that state none. A runtime would give them its own, which holds what the
// image sets, LD_PRELOAD included, and run them so as root on the host.
func hardenHooks(s *Spec) {
	if s.Hooks == nil {
		return
	}
	//nolint:staticcheck // prestart is deprecated, but CDI specifications have it
	for _, hooks := range [][]specs.Hook{s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer,
		s.Hooks.StartContainer, s.Hooks.Poststart, s.Hooks.Poststop} {
		for i := range hooks {
			if len(hooks[i].Env) == 0 {
				hooks[i].Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
			}
		}
	}
}
