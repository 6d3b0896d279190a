package nvidia

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

	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// driMajor is the major number of display devices, GPUs among them.
const driMajor = 226

// pciVendor is NVIDIA's PCI vendor ID, as sysfs has it.
const pciVendor = "0x10de"

// Devices recognises NVIDIA's devices by their numbers, whatever their nodes are called.
type Devices struct {
	majors map[int64]bool
	// sysfs is the directory in which the kernel describes display devices.
	sysfs string
}

// HostDevices returns the devices of this node.
func HostDevices() (Devices, error) {
	const procDevices = "/proc/devices"
	file, err := os.Open(procDevices)
	if err != nil {
		return Devices{}, fmt.Errorf("read the device numbers of NVIDIA's driver: %w", err)
	}
	defer file.Close()
	devices, err := ReadDevices(file)
	if err != nil {
		return Devices{}, fmt.Errorf("read the device numbers of NVIDIA's driver from %s: %w", procDevices, err)
	}
	return devices, nil
}

// ReadDevices reads devices from the content of /proc/devices: lines like "195 nvidia", the character devices first.
func ReadDevices(devices io.Reader) (Devices, error) {
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
	return Devices{majors: majors, sysfs: "/sys/dev/char"}, lines.Err()
}

// has reports whether a device is one of NVIDIA's, by its numbers: a job may give a node any name.
func (d Devices) has(kind string, major, minor int64) bool {
	if kind != "c" && kind != "u" {
		return false
	}
	return d.majors[major] || major == driMajor && d.displays(minor)
}

// displays reports whether the kernel says that a display device is an NVIDIA GPU.
func (d Devices) displays(minor int64) bool {
	vendor, err := os.ReadFile(filepath.Join(d.sysfs, fmt.Sprintf("%d:%d", driMajor, minor), "device/vendor"))
	return err == nil && strings.TrimSpace(string(vendor)) == pciVendor
}

// mounts reports whether a bind mount gives the container one of NVIDIA's device nodes.
func (d Devices) mounts(mount specs.Mount) bool {
	if !ocispec.IsBind(mount) {
		return false
	}
	if IsNode(ocispec.ContainerPath(mount.Destination)) || IsNode(ocispec.ContainerPath(mount.Source)) {
		return true
	}
	// Whoever chooses the source, a path on the host, may also change it later: this is not protection against an attacker.
	var stat unix.Stat_t
	if unix.Stat(mount.Source, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return false
	}
	return d.has("c", int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev)))
}
