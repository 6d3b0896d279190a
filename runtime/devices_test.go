package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func devicePaths(spec *specs.Spec) []string {
	var paths []string
	for _, device := range spec.Linux.Devices {
		paths = append(paths, device.Path)
	}
	return paths
}

func TestDeviceEdits(t *testing.T) {
	cases := []struct {
		name   string
		grants []Grant
		want   []string
	}{
		{"by UUID", []Grant{grantOf("aaaaaaaa", GPU1, 7)}, []string{"/dev/nvidiactl", "/dev/nvidia1"}},
		{"the index does not matter", []Grant{grantOf("aaaaaaaa", GPU1, 0)}, []string{"/dev/nvidiactl", "/dev/nvidia1"}},
		{
			"two GPUs", []Grant{grantOf("aaaaaaaa", GPU0, 0), grantOf("bbbbbbbb", GPU1, 1)},
			[]string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"},
		},
		{
			"two claims on one GPU", []Grant{grantOf("aaaaaaaa", GPU0, 0), grantOf("bbbbbbbb", GPU0, 0)},
			[]string{"/dev/nvidiactl", "/dev/nvidia0"},
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			edits, err := newDeviceEdits(t.Context(), NodeConfig(t), tc.grants)
			must.NoError(t, err)
			spec := containerSpec()
			must.NoError(t, edits.Modify(spec))
			must.Eq(t, tc.want, devicePaths(spec))
			must.Len(t, len(tc.want), spec.Linux.Resources.Devices)
			mountAt(t, spec, LibDir+"/libcuda.so."+driverVersion)
		})
	}
}

func TestDeviceEdits_LaterDirectoryFirst(t *testing.T) {
	cfg := NodeConfig(t)
	WriteCDISpec(t, filepath.Join(cfg.DriverRoot, "var/run/cdi/gpus.json"), cfg.DriverRoot, func(spec string) string {
		return strings.ReplaceAll(spec, "/dev/nvidia0", "/dev/from-run")
	})
	edits, err := newDeviceEdits(t.Context(), cfg, []Grant{grantOf("aaaaaaaa", GPU0, 0)})
	must.NoError(t, err)
	spec := containerSpec()
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/from-run"}, devicePaths(spec))
}

func TestDeviceEdits_Hooks(t *testing.T) {
	cfg := NodeConfig(t)
	WriteCDISpec(t, filepath.Join(cfg.DriverRoot, "etc/cdi/gpus.json"), cfg.DriverRoot, func(spec string) string {
		return strings.Replace(spec, `"mounts": [`, `"hooks": [
			{"hookName": "createContainer", "path": "/h", "args": ["h", "update-ldcache"]},
			{"hookName": "createContainer", "path": "/h", "args": ["h", "enable-cuda-compat", "--host-driver-version=570"]},
			{"hookName": "createContainer", "path": "/h", "args": ["h", "apply-cuda-memory-limits"]},
			{"hookName": "createContainer", "path": "/h", "args": ["h", "create-symlinks"], "env": ["A=1"]}
		], "mounts": [`, 1)
	})
	edits, err := newDeviceEdits(t.Context(), cfg, []Grant{grantOf("aaaaaaaa", GPU0, 0)})
	must.NoError(t, err)
	spec := containerSpec()
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, []specs.Hook{
		{Path: "/h", Args: []string{"h", "update-ldcache"}, Env: hookEnv()},
		{Path: "/h", Args: []string{"h", "create-symlinks"}, Env: []string{"A=1"}},
	}, spec.Hooks.CreateContainer)
}

func TestDeviceEdits_Errors(t *testing.T) {
	grants := []Grant{grantOf("aaaaaaaa", GPU0, 0)}

	t.Run("a GPU of which the CDI specs name only the index", func(t *testing.T) {
		unknown := "GPU-99999999-9999-9999-9999-999999999999"
		_, err := newDeviceEdits(t.Context(), NodeConfig(t), []Grant{grantOf("aaaaaaaa", unknown, 1)})
		for _, named := range []string{"names nvidia.com/gpu=" + unknown, "none can be generated"} {
			must.ErrorContains(t, err, named)
		}
	})
	t.Run("a driver root without a driver", func(t *testing.T) {
		cfg := NodeConfig(t)
		cfg.DriverRoot = t.TempDir()
		cfg.CDISpecDirs = []string{filepath.Join(cfg.DriverRoot, "etc/cdi")}
		_, err := newDeviceEdits(t.Context(), cfg, grants)
		for _, named := range []string{cfg.DriverRoot, cfg.CDISpecDirs[0], "libnvidia-ml.so.1", GPU0, "driver_root"} {
			must.ErrorContains(t, err, named)
		}
	})
	t.Run("a CDI spec without libcuda", func(t *testing.T) {
		cfg := NodeConfig(t)
		WriteCDISpec(t, filepath.Join(cfg.DriverRoot, "etc/cdi/gpus.json"), cfg.DriverRoot, func(spec string) string {
			return strings.ReplaceAll(spec, "libcuda.so", "libother.so")
		})
		WriteFile(t, filepath.Join(cfg.DriverRoot, LibDir, "libother.so."+driverVersion), "")
		_, err := newDeviceEdits(t.Context(), cfg, grants)
		for _, named := range []string{cfg.DriverRoot, "libcuda.so.*", GPU0} {
			must.ErrorContains(t, err, named)
		}
	})
	t.Run("a broken CDI spec", func(t *testing.T) {
		cfg := NodeConfig(t)
		broken := filepath.Join(cfg.DriverRoot, "etc/cdi/gpus.json")
		WriteFile(t, broken, `{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [`)
		must.NoError(t, os.RemoveAll(filepath.Join(cfg.DriverRoot, LibDir)))
		_, err := newDeviceEdits(t.Context(), cfg, grants)
		must.ErrorContains(t, err, broken)
	})
}
