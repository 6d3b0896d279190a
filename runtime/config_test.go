package runtime

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/request"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

func TestLoadConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	runtimetest.WriteFile(t, path, `
driver_root = "/run/nvidia/driver"
shadow_dir = "/opt/tranche/lib"
hook_path = "/opt/tranche/bin/tranche-hook"
cli_path = "/opt/tranche/bin/tranche"
state_dir = "/s"
run_dir = "/r"
runtime = "crun"
gpu_host_memory_max = "4GiB"
gpu_compute_max_share = 50
gpu_compute_high_priority = true
slice_memory = "512MiB"
enforcement = "driver"
local_claims = "off"
driver_capabilities = "compute,utility"
`)
	cfg, err := LoadConfig(path)
	must.NoError(t, err)
	cfg.Logger = nil
	must.Eq(t, Config{
		Node: edit.Node{
			DriverRoot:         "/run/nvidia/driver",
			ShadowDir:          "/opt/tranche/lib",
			HookPath:           "/opt/tranche/bin/tranche-hook",
			CLIPath:            "/opt/tranche/bin/tranche",
			StateDir:           "/s",
			RunDir:             "/r",
			CDISpecDirs:        []string{"/run/nvidia/driver/etc/cdi", "/run/nvidia/driver/var/run/cdi"},
			DriverCapabilities: "compute,utility",
		},
		Runtime:               "crun",
		Runtimes:              []string{"runc", "crun"},
		WithoutClaim:          "deny",
		GPUHostMemoryMaxBytes: 4 << 30,
		Compute:               compute.Bounds{MaxShare: 500, HighPriority: true},
		SliceBytes:            512 << 20,
		Enforcement:           claim.EnforcementDriver,
		LocalClaims:           request.Off,
	}, cfg)
}

func TestLoadConfig_Defaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	runtimetest.WriteFile(t, path, "")
	cfg, err := LoadConfig(path)
	must.NoError(t, err)
	must.Eq(t, "/", cfg.DriverRoot)
	must.Eq(t, []string{"runc", "crun"}, cfg.NextRuntimes())
	must.Eq(t, "/var/lib/tranche", cfg.StateDir)
	must.Eq(t, []string{"/etc/cdi", "/var/run/cdi"}, cfg.CDISpecDirs)
	must.Zero(t, cfg.GPUHostMemoryMaxBytes)
	must.Eq(t, 1<<30, cfg.SliceBytes)
	must.Eq(t, request.On, cfg.LocalClaims)
	must.Eq(t, claim.EnforcementAuto, cfg.Enforcement)
	must.Eq(t, compute.Bounds{}, cfg.Compute)
}

// What is wrong with prices is the business of `tranche usage`, and so on: containers start all the same.
func TestLoadConfig_SettingsOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	runtimetest.WriteFile(t, path, "run_dir = '/r'\nnomad_address = 1\n[idle]\npolicy = 'x'\n[usage]\nkeep_days = 'x'\n[prices]\nno_such_price = 1\n")
	cfg, err := LoadConfig(path)
	must.NoError(t, err)
	must.Eq(t, "/r", cfg.RunDir)
}

func TestLoadConfig_Errors(t *testing.T) {
	cases := []struct{ name, content, want string }{
		{"unknown key", "driver_rot = \"/\"", "no setting called driver_rot"},
		{"unknown table", "[gpu]\nindex = 1", "gpu"},
		{"syntax", "driver_root = /\n", "line 1"},
		{"wrong type", "\nruntime = 3\n", "line 2: runtime has a value of the wrong type: gpu_compute_max_share is a number"},
		{"text for a list", "cdi_spec_dirs = \"/etc/cdi\"", "line 1: cdi_spec_dirs has a value of the wrong type"},
		{"relative path", "shadow_dir = \"lib\"", "shadow_dir: \"lib\" is not an absolute path"},
		{"rounded memory", "gpu_host_memory_max = \"4GB\"", "gpu_host_memory_max: 4GB is not a whole number of MiB"},
		{"a share of nothing", "gpu_compute_max_share = -1.0", "gpu_compute_max_share must be a number of percent from 0.1 to 100"},
		{"a slice of nothing", "slice_memory = \"0\"", "slice_memory: 0 is not a multiple of 2MiB"},
		{"tiny slices", "slice_memory = \"32MiB\"", "slice_memory must be at least 64MiB, got \"32MiB\""},
		{"another policy", "local_claims = \"yes\"", "local_claims: \"yes\" is none of"},
		{"unknown capability", "driver_capabilities = \"compute,games\"", "driver_capabilities: unknown driver capability \"games\""},
		{"relative CDI directory", "cdi_spec_dirs = [\"cdi\"]", "cdi_spec_dirs: \"cdi\" is not an absolute path"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			runtimetest.WriteFile(t, path, tc.content)
			_, err := LoadConfig(path)
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, err, path)
		})
	}
	t.Run("named but missing", func(t *testing.T) {
		_, err := LoadConfig("/nonexistent/config.toml")
		must.ErrorContains(t, err, "/nonexistent/config.toml")
		must.ErrorContains(t, err, "TRANCHE_CONFIG")
	})
}

// A mistake leaves what containers without a GPU need.
func TestLoadConfig_ErrorLeavesTheRuntimes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	const right = "runtimes = [\"/opt/runc\"]\nstate_dir = \"/srv/tranche\"\nshadow_dir = \"/opt/lib\"\n"
	for _, wrong := range []string{
		"[idel]\npolicy = \"off\"", "shadowdir = \"/x\"", "run_dir = \"relative\"", "slice_memory = \"1GB\"", "runtime = 3", "x = [",
		"local_claims = \"yes\"", "without_claim = \"maybe\"",
	} {
		runtimetest.WriteFile(t, path, right+wrong)
		cfg, err := LoadConfig(path)
		must.Error(t, err, must.Sprint(wrong))
		must.Less(t, 240, len(err.Error())-len(path), must.Sprint(err))
		must.Eq(t, []string{"/opt/runc"}, cfg.NextRuntimes(), must.Sprint(wrong))
		must.Eq(t, "/srv/tranche", cfg.StateDir)
		must.Eq(t, DefaultRunDir, cfg.RunDir)
		must.Eq(t, DefaultShadowDir, cfg.ShadowDir)
	}
	cfg, err := LoadConfig("/nonexistent/config.toml")
	must.Error(t, err)
	must.Eq(t, defaultRuntimes, cfg.NextRuntimes())
}

func TestLoadConfig_WithoutClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	for content, want := range map[string]string{
		"": "deny", "without_claim = 'deny'": "deny", "without_claim = 'void'": "void", "without_claim = 'pass'": "pass",
	} {
		runtimetest.WriteFile(t, path, content)
		cfg, err := LoadConfig(path)
		must.NoError(t, err)
		must.Eq(t, want, cfg.WithoutClaim)
	}
	runtimetest.WriteFile(t, path, "without_claim = 'allow'")
	_, err := LoadConfig(path)
	for _, want := range []string{path, `without_claim = "allow"`, `"deny"`, `"void"`, `"pass"`} {
		must.ErrorContains(t, err, want)
	}
}
