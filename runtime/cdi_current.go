package runtime

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

	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// A node's CDI spec is a file that somebody wrote once. After an update of the driver, or when a GPU was taken out, it
// may name files that are gone, a driver that the kernel no longer runs, or another GPU's node.

// procDriver is where the kernel module says what it is and which GPUs it has.
const procDriver = "/proc/driver/nvidia"

// kernelVersion finds the version in what the kernel module says of itself.
var kernelVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)`) })

// libraryVersion finds the version in a library's name.
var libraryVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.so\.([0-9]+(?:\.[0-9]+)+)$`) })

// checkCurrent makes sure that a device of the node's CDI specs is what the driver has now. proc is procDriver.
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
	return fmt.Errorf("the CDI spec %s is wrong about %s: %s; write it anew with nvidia-ctk cdi generate",
		spec.GetPath(), device.GetQualifiedName(), strings.ReplaceAll(err.Error(), "\n", "; "))
}

// checkNodes makes sure that the nodes are there, with the numbers that the spec may state, and that no more of them are
// GPUs than there may be.
func checkNodes(nodes []*cdispecs.DeviceNode, most int) error {
	var gpus []string
	for _, node := range nodes {
		file := node.HostPath
		if file == "" {
			file = node.Path
		}
		if wholeGPUNode().MatchString(node.Path) {
			gpus = append(gpus, node.Path)
		}
		if err := checkNode(file, node); err != nil {
			return err
		}
	}
	if len(gpus) > most {
		return fmt.Errorf("it brings the GPUs %s, where there should be at most %d", strings.Join(gpus, " and "), most)
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

// checkVersion compares the version of libcuda with the kernel module's: the driver refuses any other.
func checkVersion(mounts []*cdispecs.Mount, proc string) error {
	said, err := os.ReadFile(filepath.Join(proc, "version"))
	if err != nil {
		return nil //nolint:nilerr // the module is not loaded, or lets nobody read it
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
			return fmt.Errorf("it brings the driver %s, and the kernel runs %s", version[1], running[1])
		}
	}
	return nil
}

// checkMinor compares a GPU's node with what the kernel module says of the GPU with that UUID: GPUs are numbered anew
// when one is put in or taken out, and the container would get somebody else's.
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
		if gpu := wholeGPUNode().FindStringSubmatch(node.Path); gpu != nil && gpu[1] != minor {
			return fmt.Errorf("it brings the node %s, and the GPU is number %s now", node.Path, minor)
		}
	}
	return nil
}

// information is the value of a line such as "Device Minor: \t 0".
func information(content, key string) string {
	for line := range strings.Lines(content) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
