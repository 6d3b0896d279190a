package runtime

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

// waysToAsk are the ways to ask for a GPU without a claim, as members that are put into a spec.
var waysToAsk = []struct{ name, spec, want string }{
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

// testNVIDIA is what is NVIDIA's on a node where /proc/devices has these numbers.
var testNVIDIA = nvidiaParts{devices: nvidiaDevices{majors: map[int64]bool{195: true, 508: true}}}

// specFrom is a container's spec with the members of a JSON text besides.
func specFrom(t *testing.T, members string) *specs.Spec {
	t.Helper()
	spec := containerSpec()
	must.NoError(t, json.Unmarshal([]byte(members), spec))
	return spec
}

func TestAsksForGPUs(t *testing.T) {
	for _, tc := range waysToAsk {
		t.Run(tc.name, func(t *testing.T) {
			must.Eq(t, []string{tc.want}, testNVIDIA.asks(specFrom(t, tc.spec)))
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
		t.Run(name, func(t *testing.T) { must.SliceEmpty(t, testNVIDIA.asks(specFrom(t, spec))) })
	}
}

func TestWithoutGPUs(t *testing.T) {
	for _, tc := range waysToAsk {
		t.Run(tc.name, func(t *testing.T) {
			spec := specFrom(t, tc.spec)
			must.NoError(t, withoutGPUs{nvidia: testNVIDIA}.Modify(spec))
			must.SliceEmpty(t, testNVIDIA.asks(spec))
			must.Eq(t, "void", visibleDevices(spec))
		})
	}
	t.Run("a mounted device by its numbers", func(t *testing.T) {
		// /dev/null stands for the device of a driver.
		null := nvidiaParts{devices: nvidiaDevices{majors: map[int64]bool{1: true}}}
		spec := containerSpec()
		spec.Mounts = []specs.Mount{bind("/dev/null", "/tmp/gpu"), bind("/etc/hosts", "/etc/hosts")}
		must.Eq(t, []string{`a mount at "/tmp/gpu"`}, null.asks(spec))
		must.NoError(t, withoutGPUs{nvidia: null}.Modify(spec))
		must.Eq(t, []string{"/etc/hosts"}, destinations(spec))
	})
	t.Run("a hook under a name of its own", func(t *testing.T) {
		hidden := linkToNVIDIAHook(t)
		spec := containerSpec()
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: hidden}}}
		must.Eq(t, []string{`the hook "nvidia-container-toolkit"`}, testNVIDIA.asks(spec))
		must.NoError(t, withoutGPUs{nvidia: testNVIDIA}.Modify(spec))
		must.SliceEmpty(t, spec.Hooks.CreateRuntime)
	})
	t.Run("leaves everything else", func(t *testing.T) {
		spec := specFrom(t, `{"process": {"env": ["A=1", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]},
			"hooks": {"prestart": [{"path": "/h"}, {"path": "/usr/bin/nvidia-container-toolkit"}], "poststop": [{"path": "/p"}]},
			"linux": {"devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
				{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}],
				"resources": {"devices": [{"allow": false, "access": "rwm"},
					{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"},
					{"allow": true, "type": "c", "major": 195, "minor": 255, "access": "rwm"}]}},
			"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0", "a": "b"}}`)
		mounts := destinations(spec)
		must.NoError(t, withoutGPUs{nvidia: testNVIDIA}.Modify(spec))
		must.Eq(t, []string{"A=1", "NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)
		must.Eq(t, []string{"/dev/fuse"}, devicePaths(spec))
		must.Len(t, 2, spec.Linux.Resources.Devices)
		must.Eq(t, map[string]string{"a": "b"}, spec.Annotations)
		must.Eq(t, mounts, destinations(spec))
		must.Eq(t, []specs.Hook{{Path: "/h"}}, spec.Hooks.Prestart) //nolint:staticcheck // see hookKinds
		must.Eq(t, []specs.Hook{{Path: "/p"}}, spec.Hooks.Poststop)
	})
}

func TestWithoutClaim_ErrorIsShort(t *testing.T) {
	spec := containerSpec()
	spec.Process.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("\x1b[2J\n", 1<<20)}
	for range 1000 {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/nvidia" + strings.Repeat("\xff", 1<<10)})
	}
	err := refuseWithoutClaim(testNVIDIA.asks(spec))
	must.Less(t, 2000, len(err.Error()))
	must.StrNotContains(t, err.Error(), "\n")
	must.StrNotContains(t, err.Error(), "\x1b")
	must.StrContains(t, err.Error(), "and 997 more")
}

func TestLoadConfig_WithoutClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	for content, want := range map[string]string{
		"": "deny", "without_claim = 'deny'": "deny", "without_claim = 'void'": "void", "without_claim = 'pass'": "pass",
	} {
		WriteFile(t, path, content)
		cfg, err := LoadConfig(path)
		must.NoError(t, err)
		must.Eq(t, want, cfg.WithoutClaim)
	}
	WriteFile(t, path, "without_claim = 'allow'")
	_, err := LoadConfig(path)
	for _, want := range []string{path, `without_claim = "allow"`, `"deny"`, `"void"`, `"pass"`} {
		must.ErrorContains(t, err, want)
	}
}
