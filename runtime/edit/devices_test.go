package edit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

func TestDeviceEdits(t *testing.T) {
	cases := []struct {
		name   string
		claims []Claim
		want   []string
	}{
		{"by UUID", []Claim{claimOf("aaaaaaaa", runtimetest.GPU1, 7)}, []string{"/dev/nvidiactl", "/dev/nvidia1"}},
		{"the index does not matter", []Claim{claimOf("aaaaaaaa", runtimetest.GPU1, 0)}, []string{"/dev/nvidiactl", "/dev/nvidia1"}},
		{
			"two GPUs", []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0), claimOf("bbbbbbbb", runtimetest.GPU1, 1)},
			[]string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"},
		},
		{
			"two claims on one GPU", []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0), claimOf("bbbbbbbb", runtimetest.GPU0, 0)},
			[]string{"/dev/nvidiactl", "/dev/nvidia0"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			edits, err := newDevices(t.Context(), testNode(t), tc.claims)
			must.NoError(t, err)
			spec := runtimetest.ContainerSpec()
			must.NoError(t, edits.Modify(spec))
			must.Eq(t, tc.want, runtimetest.DevicePaths(spec))
			must.Len(t, len(tc.want), spec.Linux.Resources.Devices)
			runtimetest.MountAt(t, spec, runtimetest.LibDir+"/libcuda.so."+runtimetest.DriverVersion)
		})
	}
}

func TestDeviceEdits_LaterDirectoryFirst(t *testing.T) {
	node := testNode(t)
	runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "var/run/cdi/gpus.json"), node.DriverRoot, func(spec string) string {
		return strings.ReplaceAll(spec, "/dev/nvidia0", "/dev/from-run")
	})
	edits, err := newDevices(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)})
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/from-run"}, runtimetest.DevicePaths(spec))
}

func TestDeviceEdits_Hooks(t *testing.T) {
	node := testNode(t)
	runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), node.DriverRoot, func(spec string) string {
		return strings.Replace(spec, `"mounts": [`, `"hooks": [
			{"hookName": "createContainer", "path": "/h", "args": ["h", "update-ldcache"]},
			{"hookName": "createContainer", "path": "/h", "args": ["h", "enable-cuda-compat", "--host-driver-version=570"]},
			{"hookName": "createContainer", "path": "/h", "args": ["h", "apply-cuda-memory-limits"]},
			{"hookName": "createContainer", "path": "/h", "args": ["h", "create-symlinks"], "env": ["A=1"]}
		], "mounts": [`, 1)
	})
	edits, err := newDevices(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)})
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, []specs.Hook{
		{Path: "/h", Args: []string{"h", "update-ldcache"}, Env: hookEnv()},
		{Path: "/h", Args: []string{"h", "create-symlinks"}, Env: []string{"A=1"}},
	}, spec.Hooks.CreateContainer)
}

func TestDeviceEdits_Errors(t *testing.T) {
	claims := []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)}

	t.Run("a GPU of which the CDI specs name only the index", func(t *testing.T) {
		unknown := "GPU-99999999-9999-9999-9999-999999999999"
		_, err := newDevices(t.Context(), testNode(t), []Claim{claimOf("aaaaaaaa", unknown, 1)})
		for _, named := range []string{"names nvidia.com/gpu=" + unknown, "none can be generated"} {
			must.ErrorContains(t, err, named)
		}
	})
	t.Run("a driver root without a driver", func(t *testing.T) {
		node := testNode(t)
		node.DriverRoot = t.TempDir()
		node.CDISpecDirs = []string{filepath.Join(node.DriverRoot, "etc/cdi")}
		_, err := newDevices(t.Context(), node, claims)
		for _, named := range []string{node.DriverRoot, node.CDISpecDirs[0], "libnvidia-ml.so.1", runtimetest.GPU0, "driver_root"} {
			must.ErrorContains(t, err, named)
		}
	})
	t.Run("a CDI spec without libcuda", func(t *testing.T) {
		node := testNode(t)
		runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), node.DriverRoot, func(spec string) string {
			return strings.ReplaceAll(spec, "libcuda.so", "libother.so")
		})
		runtimetest.WriteFile(t, filepath.Join(node.DriverRoot, runtimetest.LibDir, "libother.so."+runtimetest.DriverVersion), "")
		_, err := newDevices(t.Context(), node, claims)
		for _, named := range []string{node.DriverRoot, "libcuda.so.*", runtimetest.GPU0} {
			must.ErrorContains(t, err, named)
		}
	})
	t.Run("a broken CDI spec", func(t *testing.T) {
		node := testNode(t)
		broken := filepath.Join(node.DriverRoot, "etc/cdi/gpus.json")
		runtimetest.WriteFile(t, broken, `{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [`)
		must.NoError(t, os.RemoveAll(filepath.Join(node.DriverRoot, runtimetest.LibDir)))
		_, err := newDevices(t.Context(), node, claims)
		must.ErrorContains(t, err, broken)
	})
}
