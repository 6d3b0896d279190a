package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// withEverything is a spec to which an engine or NVIDIA's runtime has applied nvidia.com/gpu=all.
func withEverything(t *testing.T, cfg Config) *specs.Spec {
	t.Helper()
	WriteCDISpec(t, filepath.Join(cfg.DriverRoot, "etc/cdi/gpus.json"), cfg.DriverRoot, func(spec string) string {
		all := `{"name": "all", "containerEdits": {"hooks": [
				{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"]}
			], "env": ["OF_ALL=1"], "deviceNodes": [
				{"path": "/dev/nvidia0", "hostPath": "/dev/zero"}, {"path": "/dev/nvidia1", "hostPath": "/dev/full"}
			]}},
			{"name": "0",`
		return strings.Replace(spec, `{"name": "0",`, all, 1)
	})
	cache, err := cdi.NewCache(cdi.WithSpecDirs(cfg.CDISpecDirs...), cdi.WithAutoRefresh(false))
	must.NoError(t, err)
	spec := containerSpec()
	_, err = cache.InjectDevices(spec, "nvidia.com/gpu=all")
	must.NoError(t, err)
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"}, devicePaths(spec))
	return spec
}

// Whatever an engine has applied, the container gets the GPU of its claim, once, and nothing of another.
func TestDeviceEdits_BesideCDI(t *testing.T) {
	cfg := NodeConfig(t)
	spec := withEverything(t, cfg)
	edits, err := newDeviceEdits(t.Context(), cfg, []Grant{grantOf("aaaaaaaa", GPU1, 1)})
	must.NoError(t, err)
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia1"}, devicePaths(spec))
	must.Len(t, 0, spec.Hooks.CreateContainer)
	mountAt(t, spec, LibDir+"/libcuda.so."+driverVersion)
	must.SliceContains(t, destinations(spec), "/data/deep/down/below")
}

// Files that were brought for capabilities which the container does not ask for go, too.
func TestDeviceEdits_BesideCDI_Capabilities(t *testing.T) {
	cfg := NodeConfig(t)
	spec := withEverything(t, cfg)
	spec.Process.Env = append(spec.Process.Env, DriverCapabilitiesEnv+"=compute")
	edits, err := newDeviceEdits(t.Context(), cfg, []Grant{grantOf("aaaaaaaa", GPU1, 1)})
	must.NoError(t, err)
	must.NoError(t, edits.Modify(spec))
	must.SliceNotContains(t, destinations(spec), "/usr/bin/nvidia-smi")
}

// Without all-devices' edits of its own: a container's claim brings nothing of nvidia.com/gpu=all.
func TestDeviceEdits_NothingOfAll(t *testing.T) {
	cfg := NodeConfig(t)
	withEverything(t, cfg)
	spec := specWith(t, cfg)
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia0"}, devicePaths(spec))
	must.SliceNotContains(t, spec.Process.Env, "OF_ALL=1")
	must.Nil(t, spec.Hooks)
}

func number(n int64) *int64 { return &n }

func TestBesideNVIDIA_Devices(t *testing.T) {
	sysfs := t.TempDir()
	WriteFile(t, filepath.Join(sysfs, "226:1/device/vendor"), "0x10de\n")
	WriteFile(t, filepath.Join(sysfs, "226:0/device/vendor"), "0x8086\n")
	beside := besideNVIDIA{nvidia: nvidiaParts{devices: nvidiaDevices{majors: testNVIDIA.devices.majors, sysfs: sysfs}}}
	spec := containerSpec()
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
		bind("/dev/nvidia1", "/tmp/x"), bind("/tmp/x", "/dev/nvidia1"), bind("/dev/null", "/dev/mine"),
		bind("/dev/../dev/nvidia1", "/tmp/y"),
		bind("/dev/null", "/var/run/nvidia-container-devices/all"), bind("/srv", "/var/run/nvidia-container-devicesx"),
		{Type: "tmpfs", Source: "tmpfs", Destination: "/dev/nvidia9"},
	}
	must.NoError(t, beside.Modify(spec))
	must.Eq(t, []string{"/dev/fuse", "/dev/disk", "/dev/dri/card0"}, devicePaths(spec))
	var rules []string
	for _, rule := range spec.Linux.Resources.Devices {
		rules = append(rules, rule.Access)
		must.False(t, rule.Allow && rule.Major != nil && *rule.Major != 10)
	}
	must.Eq(t, []string{"rwm", "rwm", "rwm", "m"}, rules)
	must.Eq(t, []string{"/dev/mine", "/var/run/nvidia-container-devicesx", "/dev/nvidia9"}, destinations(spec))
}

// linkToNVIDIAHook is a hook of NVIDIA's under a name of somebody's own.
func linkToNVIDIAHook(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	hidden := filepath.Join(dir, "10-gpu")
	WriteFile(t, filepath.Join(dir, "nvidia-container-toolkit"), "")
	must.NoError(t, os.Symlink("nvidia-container-toolkit", hidden))
	return hidden
}

func TestBesideNVIDIA_Hooks(t *testing.T) {
	hidden := linkToNVIDIAHook(t)
	others := []specs.Hook{{Path: "/usr/libexec/netavark"}, {Path: "/opt/nvidia-container-runtime-hook/run"}}
	nvidias := []specs.Hook{
		{Path: "/usr/bin/nvidia-container-runtime-hook", Args: []string{"nvidia-container-runtime-hook", "prestart"}},
		{Path: "/usr/bin/nvidia-container-toolkit"}, {Path: "/usr/local/nvidia/toolkit/nvidia-cdi-hook"},
		{Path: "/usr/bin/nvidia-ctk", Args: []string{"nvidia-ctk", "hook", "update-ldcache"}}, {Path: hidden},
	}
	all := append(append([]specs.Hook{}, nvidias...), others...)
	spec := containerSpec()
	spec.Hooks = &specs.Hooks{
		Prestart:      all, //nolint:staticcheck // it is where NVIDIA's hook is
		CreateRuntime: all, CreateContainer: all, StartContainer: all, Poststart: all, Poststop: all,
	}
	must.NoError(t, besideNVIDIA{}.Modify(spec))
	must.Eq(t, &specs.Hooks{
		Prestart:      others, //nolint:staticcheck // as above
		CreateRuntime: others, CreateContainer: others, StartContainer: others, Poststart: others,
		Poststop: others,
	}, spec.Hooks)
}

func TestBesideNVIDIA_Annotations(t *testing.T) {
	spec := containerSpec()
	spec.Annotations = map[string]string{
		"cdi.k8s.io/gpu":   "nvidia.com/gpu=all",
		"cdi.k8s.io/mixed": "nvidia.com/gpu=0, nvidia.com/gpu=1,example.com/net=eth0, runtime.nvidia.com/gpu=all",
		"nvidia.cdi/own":   "nvidia.com/mig=all,management.nvidia.com/gpu=all",
		"homepage":         "see nvidia.com/gpu for more",
		"other":            "notnvidia.com/gpu=all",
	}
	must.NoError(t, besideNVIDIA{}.Modify(spec))
	must.Eq(t, map[string]string{
		"cdi.k8s.io/mixed": "example.com/net=eth0",
		"homepage":         "see nvidia.com/gpu for more",
		"other":            "notnvidia.com/gpu=all",
	}, spec.Annotations)
}

func TestNVIDIAMajors(t *testing.T) {
	const devices = "Character devices:\n  1 mem\n 10 misc\n 99 nvidia-low\n195 nvidia\n195 nvidiactl\n226 drm\n507 nvidia-nvlink\n" +
		"508 nvidia-uvm\n510 nvidia-caps\n\nBlock devices:\n259 nvidia-disk\n"
	majors, err := nvidiaMajors(strings.NewReader(devices))
	must.NoError(t, err)
	must.Eq(t, map[int64]bool{99: true, 195: true, 507: true, 508: true, 510: true}, majors)
}

func TestNodePaths(t *testing.T) {
	spec := containerSpec()
	must.Nil(t, NodePaths(spec))
	must.Nil(t, NodePaths(&specs.Spec{}))
	for _, path := range []string{"/dev/nvidiactl", "/dev/fuse", "/dev/../dev/nvidia1", "/srv/nvidia2"} {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: path})
	}
	spec.Mounts = append(spec.Mounts, bind("/x", "/dev/nvidia-caps/nvidia-cap1"), bind("/x", "/dev/fuse"))
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1"}, NodePaths(spec))
}
