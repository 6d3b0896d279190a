package spec

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	deviceDir = "/dev"
	// gpuNodes is what the paths of NVIDIA's device nodes begin with, and gpuMajor the number of the driver that has them.
	gpuNodes = "/dev/nvidia"
	gpuMajor = 195
)

// withDevices adds the devices that Nomad's device plugins give. allow_devices is not about these, but about what a job requests
// by itself.
func withDevices(cfg *drivers.TaskConfig) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		resources(s) // WithDevices takes them for granted.
		for _, device := range cfg.Devices {
			err := oci.WithDevices(device.HostPath, device.TaskPath, device.Permissions)(nil, nil, nil, s)
			if err != nil {
				return fmt.Errorf("add device %s of the host as %s: %w", device.HostPath, device.TaskPath, err)
			}
		}
		return nil
	})
}

// hostDevice is an entry of the option devices that is a path: SOURCE[:TARGET][:PERMISSIONS].
type hostDevice struct {
	given string
	// source is a device node of the host, or a directory with nodes, which all are meant.
	source, target string
	permissions    string
}

// parseDevice parses an entry.
func parseDevice(entry string) (hostDevice, error) {
	const forms = `must be a path beneath /dev such as "/dev/fuse", with what the container is to see it as and what it may ` +
		`do with it, as in "/dev/x:/dev/y:rw", or the name of a CDI device such as "vendor.com/class=name"`
	parts := strings.Split(entry, ":")
	d := hostDevice{given: entry, source: parts[0], target: parts[0], permissions: "rwm"}
	switch {
	case len(parts) == 2 && isDevicePermissions(parts[1]):
		d.permissions = parts[1]
	case len(parts) == 2:
		d.target = parts[1]
	case len(parts) == 3:
		d.target, d.permissions = parts[1], parts[2]
	}
	if len(parts) > 3 || !isDevicePath(d.source) || !isDevicePath(d.target) || !isDevicePermissions(d.permissions) {
		return hostDevice{}, fmt.Errorf("option devices = %q: %s", entry, forms)
	}
	return d, nil
}

// isDevicePermissions reports whether s is made of "r", "w" and "m" (mknod), each at most once.
func isDevicePermissions(s string) bool {
	return s != "" && strings.Trim(s, "rwm") == "" && strings.Count(s, "r") <= 1 && strings.Count(s, "w") <= 1 &&
		strings.Count(s, "m") <= 1
}

// isDevicePath reports whether p lies beneath /dev. A target elsewhere could lie in the directory of the regions.
func isDevicePath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && strings.HasPrefix(p, deviceDir+"/")
}

// nodes returns the device nodes that the entry stands for, as the container is to have them, if the node allows all of
// them. Links are followed first, so that a pattern is about the device and not about one of its names.
func (d hostDevice) nodes(plugin *Config) (*Spec, error) {
	source, err := filepath.EvalSymlinks(d.source)
	if err != nil {
		return nil, fmt.Errorf("option devices = %q: find it on the host: %w", d.given, err)
	}
	asOnHost, asInContainer := &Spec{Linux: &specs.Linux{}}, &Spec{Linux: &specs.Linux{}}
	for s, target := range map[*Spec]string{asOnHost: "", asInContainer: d.target} {
		resources(s)
		if err := oci.WithDevices(source, target, d.permissions)(nil, nil, nil, s); err != nil {
			return nil, fmt.Errorf("option devices = %q: find it on the host: %w", d.given, err)
		}
	}
	if len(asOnHost.Linux.Devices) == 0 {
		return nil, fmt.Errorf("option devices = %q: the directory holds no device nodes", d.given)
	}
	for _, node := range asOnHost.Linux.Devices {
		if !plugin.allowsDevice(node) {
			return nil, fmt.Errorf("option devices = %q: this node does not allow %s, but only %q; the operator can allow "+
				"it with the plugin's allow_devices%s", d.given, node.Path, plugin.AllowDevices, gpuHint(isGPUNode(node)))
		}
	}
	return asInContainer, nil
}

// gpuHint returns the end of the message about a GPU: how a task gets one.
func gpuHint(gpu bool) string {
	if gpu {
		return " in a pattern that names GPUs; a task gets a GPU, or a part of one, by a device block of the jobspec"
	}
	return ""
}

// isGPUNode reports whether a device node of the host belongs to a GPU, under whatever name.
func isGPUNode(node specs.LinuxDevice) bool {
	return strings.HasPrefix(node.Path, gpuNodes) || node.Type == "c" && node.Major == gpuMajor
}

// allowsDevice reports whether a pattern of allow_devices fits the device node.
//
// A task that has a GPU's node without a claim uses memory that others have claimed. An operator who allows "/dev/*" hardly
// means that, so only a pattern that begins with /dev/nvidia fits one.
func (c *Config) allowsDevice(node specs.LinuxDevice) bool {
	return slices.ContainsFunc(c.AllowDevices, func(pattern string) bool {
		if isGPUNode(node) && !strings.HasPrefix(pattern, gpuNodes) {
			return false
		}
		fits, err := path.Match(pattern, node.Path)
		return err == nil && fits
	})
}

// withHostDevices adds the devices of the host that the task names by path.
func withHostDevices(options *TaskConfig, plugin *Config) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		for _, entry := range options.Devices {
			if parser.IsQualifiedName(entry) {
				continue
			}
			device, err := parseDevice(entry)
			if err != nil {
				return err
			}
			nodes, err := device.nodes(plugin)
			if err != nil {
				return err
			}
			s.Linux.Devices = append(s.Linux.Devices, nodes.Linux.Devices...)
			resources(s).Devices = append(resources(s).Devices, nodes.Linux.Resources.Devices...)
		}
		return nil
	})
}

// checkDevices checks the option devices.
func (c *TaskConfig) checkDevices(plugin *Config) error {
	var errs []error
	for _, entry := range c.Devices {
		if parser.IsQualifiedName(entry) {
			errs = append(errs, plugin.checkCDIName(entry))
			continue
		}
		device, err := parseDevice(entry)
		if err == nil {
			_, err = device.nodes(plugin)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Config) checkAllowDevices() error {
	for _, pattern := range c.AllowDevices {
		_, err := path.Match(pattern, "")
		if err != nil || !strings.HasPrefix(pattern, deviceDir+"/") && !strings.Contains(pattern, "=") {
			return fmt.Errorf("plugin option allow_devices = %q: must be a pattern of paths, such as \"/dev/snd/*\", or of "+
				"names of CDI devices, such as \"vendor.com/class=*\"", pattern)
		}
	}
	return nil
}
