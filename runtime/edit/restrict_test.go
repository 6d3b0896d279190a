package edit

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

const libraries = "/usr/lib/x86_64-linux-gnu/"

// driverEdits are such as nvcdi makes for a whole driver.
func driverEdits(t *testing.T) *cdi.ContainerEdits {
	t.Helper()
	dir := t.TempDir()
	edits := &cdispecs.ContainerEdits{Hooks: []*cdispecs.Hook{
		{HookName: "createContainer", Path: "/h", Args: []string{
			"h", "create-symlinks", "--link", "libcuda.so.1::" + libraries + "libcuda.so",
			"--link", "../libnvidia-allocator.so.1::" + libraries + "gbm/nvidia-drm_gbm.so",
			"--link", "libGLX_nvidia.so.570.124.06::" + libraries + "libGLX_indirect.so.0",
		}},
		{HookName: "createContainer", Path: "/h", Args: []string{"h", "chmod", "--mode", "755", "--path", "/dev/dri"}},
		{HookName: "createContainer", Path: "/h", Args: []string{"h", "update-application-profile"}},
		{HookName: "createContainer", Path: "/h", Args: []string{"h", "update-ldcache", "--folder", libraries}},
	}}
	for _, node := range []string{"nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "dri/card1"} {
		edits.DeviceNodes = append(edits.DeviceNodes, &cdispecs.DeviceNode{Path: "/dev/" + node, HostPath: "/dev/null"})
	}
	mount := func(content, at string) {
		host := filepath.Join(dir, at)
		runtimetest.WriteFile(t, host, content)
		edits.Mounts = append(edits.Mounts, &cdispecs.Mount{HostPath: host, ContainerPath: at})
	}
	for _, library := range []string{
		"libcuda", "libnvidia-ml", "libnvidia-encode", "libGLX_nvidia", "libglxserver_nvidia", "libnvidia-ngx",
		"libnvidia-ptxjitcompiler", "libnvidia-newer",
	} {
		mount("\x7fELF\x02", libraries+library+".so.570.124.06")
	}
	for _, library := range []string{"libcuda", "libnvidia-ml", "libnvidia-encode", "libnvidia-ptxjitcompiler"} {
		mount("\x7fELF\x01", "/usr/lib/"+library+".so.570.124.06")
	}
	for _, file := range []string{
		"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control", "/run/nvidia-persistenced/socket",
		"/etc/vulkan/icd.d/nvidia_icd.json", "/usr/share/X11/xorg.conf.d/10-nvidia.conf",
		"/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin",
	} {
		mount("", file)
	}
	return &cdi.ContainerEdits{ContainerEdits: edits}
}

// arrived lists the last parts of what a container gets.
func arrived(t *testing.T, edits *cdi.ContainerEdits) (files, nodes []string, hooks [][]string) {
	t.Helper()
	for _, mount := range edits.Mounts {
		name := filepath.Base(mount.ContainerPath)
		if filepath.Dir(mount.ContainerPath) == "/usr/lib" {
			name = "32-bit " + name
		}
		files = append(files, name)
	}
	for _, node := range edits.DeviceNodes {
		nodes = append(nodes, filepath.Base(node.Path))
	}
	for _, hook := range edits.Hooks {
		hooks = append(hooks, hook.Args[1:])
	}
	return files, nodes, hooks
}

func TestRestricted(t *testing.T) {
	// Always: what no table names, and firmware.
	always := []string{"libnvidia-newer.so.570.124.06", "gsp_ga10x.bin"}
	ldcache := []string{"update-ldcache", "--folder", libraries}
	cases := []struct {
		asked        capabilities
		files, nodes []string
		hooks        [][]string
	}{{
		asked: compute,
		files: []string{"libcuda.so.570.124.06", "libnvidia-ptxjitcompiler.so.570.124.06", "nvidia-cuda-mps-control"},
		nodes: []string{"nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"},
		hooks: [][]string{{"create-symlinks", "--link", "libcuda.so.1::" + libraries + "libcuda.so"}, ldcache},
	}, {
		asked: utility,
		files: []string{"libnvidia-ml.so.570.124.06", "nvidia-smi", "socket"},
		nodes: []string{"nvidiactl", "nvidia0"},
		hooks: [][]string{ldcache},
	}, {
		asked: video,
		files: []string{"libnvidia-encode.so.570.124.06"},
		nodes: []string{"nvidiactl", "nvidia0"},
		hooks: [][]string{ldcache},
	}, {
		asked: graphics,
		files: []string{"libGLX_nvidia.so.570.124.06", "libnvidia-ptxjitcompiler.so.570.124.06", "nvidia_icd.json"},
		nodes: []string{"nvidiactl", "nvidia0", "nvidia-modeset", "card1"},
		hooks: [][]string{
			{
				"create-symlinks", "--link", "../libnvidia-allocator.so.1::" + libraries + "gbm/nvidia-drm_gbm.so",
				"--link", "libGLX_nvidia.so.570.124.06::" + libraries + "libGLX_indirect.so.0",
			},
			{"chmod", "--mode", "755", "--path", "/dev/dri"},
			{"update-application-profile"}, ldcache,
		},
	}, {
		asked: display,
		files: []string{"libglxserver_nvidia.so.570.124.06", "10-nvidia.conf"},
		nodes: []string{"nvidiactl", "nvidia0", "nvidia-modeset", "card1"},
		hooks: [][]string{{"chmod", "--mode", "755", "--path", "/dev/dri"}, ldcache},
	}, {
		asked: ngx,
		files: []string{"libnvidia-ngx.so.570.124.06"},
		nodes: []string{"nvidiactl", "nvidia0"},
		hooks: [][]string{ldcache},
	}, {
		// Of the libraries that need a shadow none comes for 32-bit programs.
		asked: compute | compat32,
		files: []string{
			"libcuda.so.570.124.06", "libnvidia-ptxjitcompiler.so.570.124.06", "nvidia-cuda-mps-control",
			"32-bit libnvidia-ptxjitcompiler.so.570.124.06",
		},
		nodes: []string{"nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools"},
		hooks: [][]string{{"create-symlinks", "--link", "libcuda.so.1::" + libraries + "libcuda.so"}, ldcache},
	}}
	for _, tc := range cases {
		t.Run(tc.asked.String(), func(t *testing.T) {
			files, nodes, hooks := arrived(t, restricted(driverEdits(t), tc.asked, true))
			must.SliceContainsAll(t, files, append(tc.files, always...))
			must.Eq(t, tc.nodes, nodes)
			must.Eq(t, tc.hooks, hooks)
		})
	}
}

// Everything but what would be without a limit arrives with all capabilities, and what is read stays as it was.
func TestRestricted_All(t *testing.T) {
	edits := driverEdits(t)
	before, err := json.Marshal(edits)
	must.NoError(t, err)
	files, nodes, hooks := arrived(t, restricted(edits, everyCapability, true))
	must.Len(t, len(edits.Mounts)-2, files)
	must.Len(t, 6, nodes)
	must.Len(t, 4, hooks)
	restricted(edits, compute, true)
	after, err := json.Marshal(edits)
	must.NoError(t, err)
	must.Eq(t, string(before), string(after))
}

// The capabilities are those that the spec's own environment asks for.
func TestDeviceEdits_Capabilities(t *testing.T) {
	node := testNode(t)
	node.DriverCapabilities = "compute,utility"
	libcudaAt, smiAt := runtimetest.LibDir+"/libcuda.so."+runtimetest.DriverVersion, "/usr/bin/nvidia-smi"
	cases := []struct {
		value   string
		arrives []string
		not     []string
	}{
		{"all", []string{libcudaAt, smiAt}, nil},
		{"utility", []string{smiAt}, []string{libcudaAt}},
		{"compute", []string{libcudaAt}, []string{smiAt}},
	}
	for _, tc := range cases {
		t.Run(tc.value, func(t *testing.T) {
			spec := specWith(t, node, DriverCapabilitiesEnv+"="+tc.value)
			must.SliceContainsSubset(t, runtimetest.Destinations(spec), tc.arrives)
			for _, not := range tc.not {
				must.SliceNotContains(t, runtimetest.Destinations(spec), not)
			}
		})
	}
	edits, err := newDevices(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)})
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	spec.Process.Env = append(spec.Process.Env, DriverCapabilitiesEnv+"=graphics")
	must.ErrorContains(t, edits.Modify(spec), "driver_capabilities")
}

// specWith is a spec with the devices of one GPU for a container with that environment.
func specWith(t *testing.T, node Node, env ...string) *specs.Spec {
	t.Helper()
	edits, err := newDevices(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)})
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	spec.Process.Env = append(spec.Process.Env, env...)
	must.NoError(t, edits.Modify(spec))
	return spec
}
