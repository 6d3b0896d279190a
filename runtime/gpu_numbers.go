package runtime

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/gpunode"
)

// driMajor is the major number of display devices, GPUs among them.
const driMajor = 226

// nvidiaVendor is NVIDIA's number in PCI, as sysfs writes it.
const nvidiaVendor = "0x10de"

// nvidiaDevices knows NVIDIA's devices by their numbers, whatever their nodes are called.
type nvidiaDevices struct {
	majors map[int64]bool
	// sysfs is where the kernel says whose a display device is.
	sysfs string
}

// hostDevices are the devices of this node.
func hostDevices() (nvidiaDevices, error) {
	file, err := os.Open("/proc/devices")
	if err != nil {
		return nvidiaDevices{}, fmt.Errorf("read which device numbers are NVIDIA's: %w", err)
	}
	defer file.Close()
	majors, err := nvidiaMajors(file)
	if err != nil {
		return nvidiaDevices{}, fmt.Errorf("read which device numbers are NVIDIA's from /proc/devices: %w", err)
	}
	return nvidiaDevices{majors: majors, sysfs: "/sys/dev/char"}, nil
}

// nvidiaMajors reads /proc/devices: lines like "195 nvidia", the character devices first.
func nvidiaMajors(devices io.Reader) (map[int64]bool, error) {
	majors := map[int64]bool{}
	lines := bufio.NewScanner(devices)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Block") {
			break
		}
		number, name, ok := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		major, err := strconv.ParseInt(number, 10, 64)
		if ok && err == nil && strings.HasPrefix(name, "nvidia") {
			majors[major] = true
		}
	}
	return majors, lines.Err()
}

// has tells whether a device is one of NVIDIA's, by its numbers: a job may give a node any name.
func (n nvidiaDevices) has(kind string, major, minor int64) bool {
	if kind != "c" && kind != "u" {
		return false
	}
	return n.majors[major] || major == driMajor && n.displays(minor)
}

// displays tells whether a display device is an NVIDIA GPU. Where the kernel does not say, it is not.
func (n nvidiaDevices) displays(minor int64) bool {
	vendor, err := os.ReadFile(filepath.Join(n.sysfs, fmt.Sprintf("%d:%d", driMajor, minor), "device/vendor"))
	return err == nil && strings.TrimSpace(string(vendor)) == nvidiaVendor
}

// mounts tells whether a bind mount shows the container one of NVIDIA's device nodes.
func (n nvidiaDevices) mounts(mount specs.Mount) bool {
	if !isBind(mount) {
		return false
	}
	if gpunode.Is(containerPath(mount.Destination)) || gpunode.Is(containerPath(mount.Source)) {
		return true
	}
	// The source is a path on the host, which whoever may name it may also change: this is for the honest.
	var stat unix.Stat_t
	if unix.Stat(mount.Source, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return false
	}
	return n.has("c", int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev)))
}
