package nvidia

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// requests are the ways to request a GPU without a claim, as members of a spec.
var requests = []struct{ name, spec, want string }{
	{"all GPUs", `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}`, `NVIDIA_VISIBLE_DEVICES="all"`},
	{
		"the last of two variables", `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=0"]}}`,
		`NVIDIA_VISIBLE_DEVICES="0"`,
	},
	{
		"Docker's --gpus", `{"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}]}}`,
		`the hook "nvidia-container-runtime-hook"`,
	},
	{
		"a hook that NVIDIA's operator has wrapped", `{"hooks": {"prestart": [{"path": "/run/nvidia/toolkit/nvidia-container-runtime-hook.real"}]}}`,
		`the hook "nvidia-container-runtime-hook.real"`,
	},
	{
		"containerd's --gpus",
		`{"hooks": {"prestart": [{"path": "/usr/bin/containerd", "args": ["containerd", "oci-hook", "--", "/usr/bin/nvidia-container-cli"]}]}}`,
		`the hook "nvidia-container-cli"`,
	},
	{
		"NVIDIA's CDI hooks", `{"hooks": {"createContainer": [{"path": "/usr/bin/nvidia-cdi-hook", "args": ["x", "chmod"]}]}}`,
		`the hook "nvidia-cdi-hook"`,
	},
	{"a device", `{"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}}`, `the device "/dev/nvidia0"`},
	{"a device by a detour", `{"linux": {"devices": [{"path": "//dev/./nvidia0", "type": "c"}]}}`, `the device "//dev/./nvidia0"`},
	{
		"MIG", `{"linux": {"devices": [{"path": "/dev/nvidia-caps/nvidia-cap1", "type": "c"}]}}`,
		`the device "/dev/nvidia-caps/nvidia-cap1"`,
	},
	{
		"a mounted device", `{"mounts": [{"destination": "/gpu", "type": "bind", "source": "/dev/nvidia0"}]}`,
		`a mount at "/gpu"`,
	},
	{
		"a GPU as a volume", `{"mounts": [{"destination": "/var/run/nvidia-container-devices/all", "source": "/dev/null", "type": "bind"}]}`,
		`a mount at "/var/run/nvidia-container-devices/all"`,
	},
	{
		"a device under a name and numbers of its own", `{"linux": {"devices": [{"path": "/dev/nvidia_next", "type": "c"}]}}`,
		`the device "/dev/nvidia_next"`,
	},
	{
		"a device by its numbers", `{"linux": {"devices": [{"path": "/dev/innocent", "type": "c", "major": 508, "minor": 0}]}}`,
		`the device "/dev/innocent"`,
	},
	{
		"a device that is made later", `{"linux": {"resources": {"devices": [
			{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "major": 195, "access": "rwm"}]}}}`,
		`a rule for the device numbers 195:*`,
	},
	{
		"one device that is made later", `{"linux": {"resources": {"devices": [
			{"allow": true, "type": "c", "major": 195, "minor": 1, "access": "r"}]}}}`,
		`a rule for the device numbers 195:1`,
	},
	{
		"a device and its rule", `{"linux": {"devices": [{"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}],
			"resources": {"devices": [{"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"}]}}}`,
		`the device "/dev/nvidia1"`,
	},
	{
		"CDI by any annotation", `{"annotations": {"com.example/gpus": "runtime.nvidia.com/gpu=0"}}`,
		`the annotation "com.example/gpus"`,
	},
	{
		"CDI by annotation", `{"annotations": {"cdi.k8s.io/x": "vendor.com/net=a,nvidia.com/gpu=all"}}`,
		`the annotation "cdi.k8s.io/x"`,
	},
}

// testDevices are the devices of a node where /proc/devices has these numbers.
var testDevices = Devices{majors: map[int64]bool{195: true, 508: true}}

// specFrom is a container's spec with the members of a JSON text.
func specFrom(t *testing.T, members string) *specs.Spec {
	t.Helper()
	spec := runtimetest.ContainerSpec()
	must.NoError(t, json.Unmarshal([]byte(members), spec))
	return spec
}

func TestRequests(t *testing.T) {
	for _, tc := range requests {
		t.Run(tc.name, func(t *testing.T) {
			must.Eq(t, []string{tc.want}, testDevices.Requests(specFrom(t, tc.spec)))
		})
	}
	for name, spec := range map[string]string{
		"nothing":            `{}`,
		"no process":         `{"process": null, "linux": null}`,
		"void":               `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"]}}`,
		"none":               `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=none"]}}`,
		"empty":              `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES="]}}`,
		"another variable":   `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES_X=all", "CUDA_VERSION=12"]}}`,
		"other devices":      `{"linux": {"devices": [{"path": "/dev/fuse"}, {"path": "/dev/dri/nvidia0"}]}}`,
		"other hooks":        `{"hooks": {"poststop": [{"path": "/usr/bin/nvidia-docker-cleanup"}]}}`,
		"another annotation": `{"annotations": {"cdi.k8s.io/x": "vendor.com/net=a", "note": "see nvidia.com/gpu=all", "other": "notnvidia.com/gpu=all"}}`,
		"other rules": `{"linux": {"resources": {"devices": [{"allow": false, "type": "c", "major": 195, "access": "rwm"},
			{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"}, {"allow": true, "type": "c", "access": "m"}]}}}`,
		"a display of others": `{"linux": {"devices": [{"path": "/dev/dri/card0", "type": "c", "major": 226}]}}`,
		"void, and spaces":    `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES= void "]}}`,
		"a file of that name": `{"mounts": [{"destination": "/opt/dev/nvidia", "source": "/srv/dev/nvidia", "type": "bind"}]}`,
	} {
		t.Run(name, func(t *testing.T) { must.SliceEmpty(t, testDevices.Requests(specFrom(t, spec))) })
	}
}

// Nothing that requests a GPU is left, except the variable, which the edits set.
func TestRemove(t *testing.T) {
	for _, tc := range requests {
		t.Run(tc.name, func(t *testing.T) {
			spec := specFrom(t, tc.spec)
			testDevices.Remove(spec)
			spec.Process.Env = append(spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=void")
			must.SliceEmpty(t, testDevices.Requests(spec))
		})
	}
	t.Run("a mounted device by its numbers", func(t *testing.T) {
		// /dev/null stands for the device of a driver.
		null := Devices{majors: map[int64]bool{1: true}}
		spec := runtimetest.ContainerSpec()
		spec.Mounts = []specs.Mount{runtimetest.Bind("/dev/null", "/tmp/gpu"), runtimetest.Bind("/etc/hosts", "/etc/hosts")}
		must.Eq(t, []string{`a mount at "/tmp/gpu"`}, null.Requests(spec))
		null.Remove(spec)
		must.Eq(t, []string{"/etc/hosts"}, runtimetest.Destinations(spec))
	})
	t.Run("a hook under another name", func(t *testing.T) {
		spec := runtimetest.ContainerSpec()
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: runtimetest.LinkToHook(t)}}}
		must.Eq(t, []string{`the hook "nvidia-container-toolkit"`}, testDevices.Requests(spec))
		testDevices.Remove(spec)
		must.SliceEmpty(t, spec.Hooks.CreateRuntime)
	})
}

func number(n int64) *int64 { return &n }

func TestRemove_Devices(t *testing.T) {
	sysfs := t.TempDir()
	runtimetest.WriteFile(t, filepath.Join(sysfs, "226:1/device/vendor"), "0x10de\n")
	runtimetest.WriteFile(t, filepath.Join(sysfs, "226:0/device/vendor"), "0x8086\n")
	devices := Devices{majors: testDevices.majors, sysfs: sysfs}
	spec := runtimetest.ContainerSpec()
	spec.Linux.Devices = []specs.LinuxDevice{
		{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229},
		{Path: "/dev/nvidia3", Type: "c", Major: 1, Minor: 3},
		{Path: "/dev//nvidia-caps/nvidia-cap12", Type: "c", Major: 1, Minor: 3},
		{Path: "/dev/innocent", Type: "c", Major: 195, Minor: 1},
		{Path: "/dev/innocent2", Type: "u", Major: 508, Minor: 0},
		{Path: "/dev/disk", Type: "b", Major: 195, Minor: 1},
		{Path: "/dev/dri/card0", Type: "c", Major: 226, Minor: 0},
		{Path: "/dev/dri/card1", Type: "c", Major: 226, Minor: 1},
		{Path: "/dev/nvidia_next", Type: "c", Major: 7, Minor: 7},
	}
	spec.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		{Allow: true, Type: "c", Major: number(10), Minor: number(229), Access: "rwm"},
		{Allow: true, Type: "c", Major: number(195), Minor: number(1), Access: "rw"},
		{Allow: true, Type: "c", Major: number(195), Access: "rwm"},
		{Allow: true, Type: "c", Major: number(7), Minor: number(7), Access: "rwm"},
		{Allow: true, Type: "a", Major: number(508), Access: "rwm"},
		{Allow: false, Type: "c", Major: number(195), Access: "rwm"},
		{Allow: true, Access: "m", Type: "c"},
	}}
	spec.Mounts = []specs.Mount{
		runtimetest.Bind("/dev/nvidia1", "/tmp/x"), runtimetest.Bind("/tmp/x", "/dev/nvidia1"), runtimetest.Bind("/dev/null", "/dev/mine"),
		runtimetest.Bind("/dev/../dev/nvidia1", "/tmp/y"),
		runtimetest.Bind("/dev/null", "/var/run/nvidia-container-devices/all"), runtimetest.Bind("/srv", "/var/run/nvidia-container-devicesx"),
		{Type: "tmpfs", Source: "tmpfs", Destination: "/dev/nvidia9"},
	}
	devices.Remove(spec)
	must.Eq(t, []string{"/dev/fuse", "/dev/disk", "/dev/dri/card0"}, runtimetest.DevicePaths(spec))
	var rules []string
	for _, rule := range spec.Linux.Resources.Devices {
		rules = append(rules, rule.Access)
		must.False(t, rule.Allow && rule.Major != nil && *rule.Major != 10)
	}
	must.Eq(t, []string{"rwm", "rwm", "rwm", "m"}, rules)
	must.Eq(t, []string{"/dev/mine", "/var/run/nvidia-container-devicesx", "/dev/nvidia9"}, runtimetest.Destinations(spec))
}

func TestRemove_Hooks(t *testing.T) {
	hidden := runtimetest.LinkToHook(t)
	others := []specs.Hook{{Path: "/usr/libexec/netavark"}, {Path: "/opt/nvidia-container-runtime-hook/run"}}
	nvidias := []specs.Hook{
		{Path: "/usr/bin/nvidia-container-runtime-hook", Args: []string{"nvidia-container-runtime-hook", "prestart"}},
		{Path: "/usr/bin/nvidia-container-toolkit"}, {Path: "/usr/local/nvidia/toolkit/nvidia-cdi-hook"},
		{Path: "/usr/bin/nvidia-ctk", Args: []string{"nvidia-ctk", "hook", "update-ldcache"}}, {Path: hidden},
	}
	all := append(append([]specs.Hook{}, nvidias...), others...)
	spec := runtimetest.ContainerSpec()
	spec.Hooks = &specs.Hooks{
		Prestart:      all, //nolint:staticcheck // it is where NVIDIA's hook is
		CreateRuntime: all, CreateContainer: all, StartContainer: all, Poststart: all, Poststop: all,
	}
	Devices{}.Remove(spec)
	must.Eq(t, &specs.Hooks{
		Prestart:      others, //nolint:staticcheck // as above
		CreateRuntime: others, CreateContainer: others, StartContainer: others, Poststart: others,
		Poststop: others,
	}, spec.Hooks)
}

func TestRemove_Annotations(t *testing.T) {
	spec := runtimetest.ContainerSpec()
	spec.Annotations = map[string]string{
		"cdi.k8s.io/gpu":   "nvidia.com/gpu=all",
		"cdi.k8s.io/mixed": "nvidia.com/gpu=0, nvidia.com/gpu=1,example.com/net=eth0, runtime.nvidia.com/gpu=all",
		"nvidia.cdi/own":   "nvidia.com/mig=all,management.nvidia.com/gpu=all",
		"homepage":         "see nvidia.com/gpu for more",
		"other":            "notnvidia.com/gpu=all",
	}
	Devices{}.Remove(spec)
	must.Eq(t, map[string]string{
		"cdi.k8s.io/mixed": "example.com/net=eth0",
		"homepage":         "see nvidia.com/gpu for more",
		"other":            "notnvidia.com/gpu=all",
	}, spec.Annotations)
}

func TestReadDevices(t *testing.T) {
	const devices = "Character devices:\n  1 mem\n 10 misc\n 99 nvidia-low\n195 nvidia\n195 nvidiactl\n226 drm\n507 nvidia-nvlink\n" +
		"508 nvidia-uvm\n510 nvidia-caps\n\nBlock devices:\n259 nvidia-disk\n"
	read, err := ReadDevices(strings.NewReader(devices))
	must.NoError(t, err)
	must.Eq(t, map[int64]bool{99: true, 195: true, 507: true, 508: true, 510: true}, read.majors)
}

func TestNodePaths(t *testing.T) {
	spec := runtimetest.ContainerSpec()
	must.Nil(t, NodePaths(spec))
	must.Nil(t, NodePaths(&specs.Spec{}))
	for _, path := range []string{"/dev/nvidiactl", "/dev/fuse", "/dev/../dev/nvidia1", "/srv/nvidia2"} {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: path})
	}
	spec.Mounts = append(spec.Mounts, runtimetest.Bind("/x", "/dev/nvidia-caps/nvidia-cap1"), runtimetest.Bind("/x", "/dev/fuse"))
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1"}, NodePaths(spec))
}

func TestIsNode(t *testing.T) {
	for file, want := range map[string]bool{
		"/dev/nvidia0": true, "/dev/nvidia12": true, "/dev/nvidiactl": true, "/dev/nvidia-uvm": true,
		"/dev/nvidia-uvm-tools": true, "/dev/nvidia-caps/nvidia-cap1": true, "/dev/nvidia-modeset": true,
		"/dev/nvidia": true, "/dev/nvidia/0": true,
		"/dev/nvidiactl2": true, "/dev/nvidiafoo": true, "/dev/nvi": false, "/dev/null": false, "/x/dev/nvidia0": false,
		"/dev/dri/card0": false, "": false,
	} {
		must.Eq(t, want, IsNode(file), must.Sprint(file))
	}
}
