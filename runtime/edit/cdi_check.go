package edit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/runtime/nvidia"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// A node's CDI spec is a file that may be out of date. After an update of the driver, or after a GPU was removed, it may
// name missing files, a driver version that the kernel no longer runs, or the node of another GPU.

// procDriver is the directory in which the kernel module publishes its version and its GPUs.
const procDriver = "/proc/driver/nvidia"

// kernelVersion matches the version in procDriver/version.
var kernelVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)`) })

// libraryVersion matches the version in a library's file name.
var libraryVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.so\.([0-9]+(?:\.[0-9]+)+)$`) })

// checkCurrent returns an error if a device of the node's CDI specs does not match the driver. proc is procDriver.
func checkCurrent(device *cdi.Device, proc string) error {
	spec := device.GetSpec()
	err := errors.Join(
		checkNodes(spec.ContainerEdits.DeviceNodes, 0),
		checkNodes(device.ContainerEdits.DeviceNodes, 1),
		checkFiles(spec.ContainerEdits.Mounts),
		checkFiles(device.ContainerEdits.Mounts),
		checkVersion(spec.ContainerEdits.Mounts, proc),
		checkMinor(device, proc),
	)
	if err == nil {
		return nil
	}
	return fmt.Errorf("the CDI spec %s is out of date for %s: %s; write it again with nvidia-ctk cdi generate",
		spec.GetPath(), device.GetQualifiedName(), strings.ReplaceAll(err.Error(), "\n", "; "))
}

// checkNodes checks that the nodes exist, with the spec's device numbers if it has any, and that at most so many of them are
// GPUs.
func checkNodes(nodes []*cdispecs.DeviceNode, most int) error {
	var gpus []string
	for _, node := range nodes {
		file := node.HostPath
		if file == "" {
			file = node.Path
		}
		if _, isGPU := nvidia.GPUMinor(node.Path); isGPU {
			gpus = append(gpus, node.Path)
		}
		if err := checkNode(file, node); err != nil {
			return err
		}
	}
	if len(gpus) > most {
		return fmt.Errorf("it has the GPUs %s, and may have at most %d", strings.Join(gpus, " and "), most)
	}
	return nil
}

func checkNode(file string, node *cdispecs.DeviceNode) error {
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		return fmt.Errorf("its device node %s: %w", file, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("its device node %s is no character device", file)
	}
	major, minor := int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	if node.Major != 0 && (node.Major != major || node.Minor != minor) {
		return fmt.Errorf("its device node %s is %d:%d here, not %d:%d", file, major, minor, node.Major, node.Minor)
	}
	return nil
}

func checkFiles(mounts []*cdispecs.Mount) error {
	for _, mount := range mounts {
		if _, err := os.Stat(mount.HostPath); err != nil {
			return fmt.Errorf("the driver's file %s: %w", mount.HostPath, err)
		}
	}
	return nil
}

// checkVersion compares the version of libcuda with the kernel module's. The driver works only if they are equal.
func checkVersion(mounts []*cdispecs.Mount, proc string) error {
	said, err := os.ReadFile(filepath.Join(proc, "version"))
	if err != nil {
		return nil //nolint:nilerr // the module is not loaded, or the file is not readable
	}
	running := kernelVersion().FindSubmatch(said)
	for _, mount := range mounts {
		if shadow.SONAME(mount.ContainerPath) != shadow.CUDA || running == nil {
			continue
		}
		file, err := filepath.EvalSymlinks(mount.HostPath)
		if err != nil {
			return fmt.Errorf("the driver's file %s: %w", mount.HostPath, err)
		}
		if version := libraryVersion().FindStringSubmatch(file); version != nil && version[1] != string(running[1]) {
			return fmt.Errorf("it has driver %s, and the kernel module is %s", version[1], running[1])
		}
	}
	return nil
}

// checkMinor compares a GPU's node with the minor number that the kernel module has for its UUID: numbers change when a GPU
// is added or removed, and the container would get another GPU.
func checkMinor(device *cdi.Device, proc string) error {
	files, err := filepath.Glob(filepath.Join(proc, "gpus/*/information"))
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // gone since it was listed
		}
		if information(string(content), "GPU UUID") == device.Name {
			return checkGPUNodes(device.ContainerEdits.DeviceNodes, information(string(content), "Device Minor"))
		}
	}
	return nil
}

func checkGPUNodes(nodes []*cdispecs.DeviceNode, minor string) error {
	for _, node := range nodes {
		if has, isGPU := nvidia.GPUMinor(node.Path); isGPU && has != minor {
			return fmt.Errorf("it has the node %s, and the GPU has minor number %s now", node.Path, minor)
		}
	}
	return nil
}

// information returns the value of a line such as "Device Minor: \t 0".
func information(content, key string) string {
	for line := range strings.Lines(content) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
