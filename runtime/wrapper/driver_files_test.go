package wrapper_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// A driver as its packages install it, as far as this matters here: what NVIDIA's own nvcdi finds of it is sorted by
// capability, and a container gets the files that it asks for.
func TestContainer_DriverCapabilities(t *testing.T) {
	cases := []struct {
		ask  string // the variable's value; "-" for none
		want string
	}{
		{"-", "libcuda libnvidia-allocator libnvidia-ml libnvidia-ptxjitcompiler nvidia-cuda-mps-control " +
			"nvidia-cuda-mps-server nvidia-smi nvidia.icd"},
		{"utility", "libnvidia-ml nvidia-smi"},
		{"compute,video", "libcuda libnvcuvid libnvidia-allocator libnvidia-encode libnvidia-ptxjitcompiler " +
			"nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia.icd"},
		{
			"graphics", "10_nvidia.json libEGL_nvidia libnvidia-allocator libnvidia-egl-gbm libnvidia-glcore " +
				"libnvidia-ptxjitcompiler nvidia_icd.json",
		},
		{"display", "10-nvidia.conf libglxserver_nvidia nvidia-xconfig nvidia_drv"},
		{"ngx", "libnvidia-ngx"},
		{
			"all", "10-nvidia.conf 10_nvidia.json libEGL_nvidia libcuda libglxserver_nvidia libnvcuvid libnvidia-allocator " +
				"libnvidia-egl-gbm libnvidia-encode libnvidia-glcore libnvidia-ml libnvidia-ngx libnvidia-ptxjitcompiler " +
				"nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-smi nvidia-xconfig nvidia.icd nvidia_drv nvidia_icd.json",
		},
	}
	n := newNVIDIANode(t, "runc", "h200x2.conf")
	root := n.cfg.DriverRoot
	must.NoError(t, os.RemoveAll(filepath.Join(root, "etc/cdi")))
	for _, library := range []string{
		"libnvidia-allocator", "libnvidia-ptxjitcompiler", "libnvcuvid", "libnvidia-encode", "libEGL_nvidia",
		"libnvidia-glcore", "libnvidia-ngx",
	} {
		runtimetest.WriteFile(t, filepath.Join(root, runtimetest.LibDir, library+".so.570.124.06"), library)
	}
	for _, file := range []string{
		runtimetest.LibDir + "/libnvidia-egl-gbm.so.1.1.2", "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
		"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.570.124.06", "/usr/bin/nvidia-xconfig",
		"/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/etc/vulkan/icd.d/nvidia_icd.json",
		"/usr/share/X11/xorg.conf.d/10-nvidia.conf", "/etc/OpenCL/vendors/nvidia.icd",
	} {
		runtimetest.WriteFile(t, filepath.Join(root, file), file)
	}
	for _, tc := range cases {
		t.Run(tc.ask, func(t *testing.T) {
			n.t = t
			_, env := n.claimOn(h200First)
			environment := []string{env}
			if tc.ask != "-" {
				environment = append(environment, "NVIDIA_DRIVER_CAPABILITIES="+tc.ask)
			}
			// What is mounted, without the shadows' hidden neighbours: each file once, by its name before the version.
			bundle := n.image(n.bundle(filepath.Base(t.Name()), `busybox awk '
				$2 !~ "^/(dev|sys|proc)/|/[.]tranche/" && $2 ~ /nvidia|libcuda|libnvcuvid/ { sub(".*/", "", $2); sub(/\.so.*/, "", $2); print $2 }' /proc/mounts |
				busybox sort -u | busybox tr '\n' ' '`, environment...))
			must.Eq(t, tc.want+" ", n.must(n.oci("run", "--bundle", bundle, "c1")))
		})
	}
}

// What no table and no operator knows is refused before anything is made.
func TestContainer_DriverCapabilities_Unknown(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200x2.conf")
	_, env := n.claimOn(h200First)
	bundle := n.probe("b", env, "NVIDIA_DRIVER_CAPABILITIES=compute,raytracing")
	message := n.fails(n.oci("run", "--bundle", bundle, "c1"))
	for _, named := range []string{"NVIDIA_DRIVER_CAPABILITIES", `"raytracing"`, "compute,utility,video,graphics,display,ngx,compat32"} {
		must.StrContains(t, message, named)
	}
}
