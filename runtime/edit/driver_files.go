package edit

import (
	"io"
	"os"
	"path"
	"strings"
)

// The driver's files by the capabilities that need them. A file that is in none of these tables is added for every
// capability: an unneeded library does no harm, and a program without a library that it needs does not run.

// driverLibraries has libraries by their name before ".so".
var driverLibraries = map[string]capabilities{
	"libcuda":                   compute,
	"libcudadebugger":           compute,
	"libnvidia-opencl":          compute,
	"libnvidia-compiler":        compute,
	"libnvidia-fatbinaryloader": compute,
	"libnvidia-nvvm":            compute | graphics,
	"libnvidia-nvvm70":          compute | graphics,
	"libnvidia-ptxjitcompiler":  compute | graphics,
	"libnvidia-gpucomp":         compute | graphics,
	"libnvidia-allocator":       compute | graphics,
	"libnvidia-pkcs11":          compute,
	"libnvidia-pkcs11-openssl3": compute,
	"libnvidia-sandboxutils":    compute | utility,
	"libnvidia-ml":              utility,
	"libnvidia-cfg":             utility,
	"libnvidia-nscq":            utility,
	"libnvidia-encode":          video,
	"libnvidia-opticalflow":     video,
	"libnvcuvid":                video,
	"libvdpau_nvidia":           video,
	"libEGL_nvidia":             graphics,
	"libGLESv1_CM_nvidia":       graphics,
	"libGLESv2_nvidia":          graphics,
	"libGLX_nvidia":             graphics,
	"libGLX_indirect":           graphics,
	"libEGL":                    graphics,
	"libGL":                     graphics,
	"libGLESv1_CM":              graphics,
	"libGLESv2":                 graphics,
	"libGLX":                    graphics,
	"libGLdispatch":             graphics,
	"libOpenGL":                 graphics,
	"libOpenCL":                 compute,
	"libnvidia-api":             graphics,
	"libnvidia-cbl":             graphics,
	"libnvidia-eglcore":         graphics,
	"libnvidia-fbc":             graphics,
	"libnvidia-glcore":          graphics,
	"libnvidia-glsi":            graphics,
	"libnvidia-glvkspirv":       graphics,
	"libnvidia-ifr":             graphics,
	"libnvidia-present":         graphics,
	"libnvidia-rtcore":          graphics,
	"libnvidia-tls":             graphics,
	"libnvidia-vulkan-producer": graphics,
	"libnvidia-vksc-core":       graphics,
	"libnvidia-wayland-client":  graphics,
	"libnvidia-egl-gbm":         graphics,
	"libnvidia-egl-wayland":     graphics,
	"libnvidia-egl-wayland2":    graphics,
	"libnvidia-egl-xcb":         graphics,
	"libnvidia-egl-xlib":        graphics,
	"libnvoptix":                graphics,
	"nvidia-drm_gbm":            graphics,
	"libnvidia-gtk2":            display,
	"libnvidia-gtk3":            display,
	"libnvidia-xcfg":            display,
	"libglxserver_nvidia":       display,
	"nvidia_drv":                display,
	"libnvidia-ngx":             ngx,
	"libnvidia-tileiras":        compute,
}

// driverFiles has other files by their name.
var driverFiles = map[string]capabilities{
	"nvidia-smi":              utility,
	"nvidia-debugdump":        utility,
	"nvidia-persistenced":     utility,
	"nv-fabricmanager":        utility,
	"nvidia-imex":             utility,
	"nvidia-imex-ctl":         utility,
	"nvidia-cuda-mps-control": compute,
	"nvidia-cuda-mps-server":  compute,
	"nvidia-mps":              compute,
	"nvidia.icd":              compute,
	"nvidia-xconfig":          display,
	"nvidia-settings":         display,
	"nvidia-ngx-updater":      ngx,
	"nvoptix.bin":             graphics,
}

// driverDirs has files by a part of the path: configuration of other loaders, sockets, and device nodes.
var driverDirs = []struct {
	part string
	set  capabilities
}{
	{"/nvidia-persistenced/", utility},
	{"/nvidia-fabricmanager/", compute | utility},
	{"/glvnd/", graphics},
	{"/egl/", graphics},
	{"/vulkan/", graphics},
	{"/xorg.conf.d/", display},
	{"/dev/dri", graphics | display},
	{"/dev/nvidia-modeset", graphics | display},
	{"/dev/nvidia-uvm", compute}, // and -uvm-tools: unified memory, without which there is no CUDA
}

// capabilitiesOf returns the capabilities that need a file or device node of the driver, by its path in the container.
func capabilitiesOf(file string) capabilities {
	base := path.Base(file)
	if stem, _, library := strings.Cut(base, ".so"); library {
		if set, ok := driverLibraries[stem]; ok {
			return set
		}
	}
	if set, ok := driverFiles[base]; ok {
		return set
	}
	for _, dir := range driverDirs {
		if strings.Contains(file, dir.part) {
			return dir.set
		}
	}
	return everyCapability
}

// is32Bit reports whether a file on this node is a library for 32-bit programs, by its ELF header. Paths differ between
// distributions: one's /usr/lib is another's /usr/lib32.
func is32Bit(file string) bool {
	if !strings.Contains(path.Base(file), ".so") {
		return false
	}
	library, err := os.Open(file)
	if err != nil {
		return false
	}
	defer library.Close()
	var header [5]byte
	_, err = io.ReadFull(library, header[:])
	return err == nil && string(header[:]) == "\x7fELF\x01"
}
