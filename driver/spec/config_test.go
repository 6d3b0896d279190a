package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/internal/blockcheck"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/compute"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

func TestConfig_Validate(t *testing.T) {
	good := Config{ContainerdAddress: defaultAddress, Namespace: "nomad", Runtime: ociruntime.Runc,
		Snapshotter: "overlayfs", ImagePullTimeout: "5m"}
	must.NoError(t, good.Check())
	cases := []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"no address", func(c *Config) { c.ContainerdAddress = "" }, "containerd_address"},
		{"a relative address", func(c *Config) { c.ContainerdAddress = "containerd.sock" }, "containerd_address"},
		{"no namespace", func(c *Config) { c.Namespace = "" }, "namespace"},
		{"no runtime", func(c *Config) { c.Runtime = "" }, "plugin option runtime"},
		{"no snapshotter", func(c *Config) { c.Snapshotter = "" }, "snapshotter"},
		{"a timeout that is none", func(c *Config) { c.ImagePullTimeout = "-1s" }, "image_pull_timeout"},
		{"an interval that is none", func(c *Config) { c.StatsInterval = "often" }, "stats_interval"},
		{"host memory that would be rounded", func(c *Config) { c.GPUHostMemoryMax = "4GB" }, "gpu_host_memory_max: 4GB"},
		{"more than a GPU", func(c *Config) { c.GPUComputeMaxShare = "101" }, "plugin option gpu_compute_max_share must be a number of percent"},
		{"a capability that is unknown", func(c *Config) { c.DriverCapabilities = "compute,games" }, "plugin option driver_capabilities: unknown driver capability"},
		{"a relative driver root", func(c *Config) { c.DriverRoot = "root" }, "driver_root"},
		{"a relative directory of CDI specifications", func(c *Config) { c.CDISpecDirs = []string{"/etc/cdi", "cdi"} },
			`plugin option cdi_spec_dirs = ["/etc/cdi" "cdi"]: must be absolute paths`},
		{"a relative hook", func(c *Config) { c.HookPath = "tranche-hook" }, "hook_path"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bad := good
			c.edit(&bad)
			must.ErrorContains(t, bad.Check(), c.want)
		})
	}
}

// A fraction is an error that names the option, in the plugin's block and in a task's.
func TestConfig_Fractions(t *testing.T) {
	for block, want := range map[string]string{
		`{"pids_limit": 1.5}`:      "option pids_limit must be a whole number, got 1.5",
		`{"oom_score_adj": 100.5}`: "option oom_score_adj must be a whole number, got 100.5",
	} {
		var out strings.Builder
		code, _ := CheckBlock([]string{"plugin", blockcheck.Flag}, strings.NewReader(block), &out)
		must.Eq(t, blockcheck.Wrong, code)
		must.StrContains(t, out.String(), want)
	}
	for options, want := range map[string]string{
		"pids_limit = 1.5": "option pids_limit must be a whole number, got 1.5",
		`mount {
			type   = "tmpfs"
			target = "/t"
			tmpfs_options { size = 0.5 }
		}`: "option mount.tmpfs_options.size must be a whole number, got 0.5",
	} {
		_, err := readTask(t, &Config{}, options)
		must.ErrorContains(t, err, want)
	}
}

func TestConfig_DefaultsOfTheSchema(t *testing.T) {
	var config Config
	hclutils.NewConfigParser(ConfigSpec).ParseHCL(t, `config { allow_runtimes = ["io.containerd.kata.v2"] }`, &config)
	must.NoError(t, config.Check())
	must.Eq(t, defaultAddress, config.ContainerdAddress)
	must.Eq(t, "nomad", config.Namespace)
	must.Eq(t, "5m", config.ImagePullTimeout)
	must.Eq(t, "0", config.GPUHostMemoryMax)
	bounds, err := config.GPUComputeBounds()
	must.NoError(t, err)
	must.Eq(t, compute.Bounds{}, bounds)
	must.True(t, config.allowsRuntime(ociruntime.Runc))
	must.True(t, config.allowsRuntime("io.containerd.kata.v2"))
	must.False(t, config.allowsRuntime("/bin/sh"))
	must.False(t, config.allowsRuntime("crun"))
}

func TestSetInstalled(t *testing.T) {
	prefix := t.TempDir()
	bin := filepath.Join(prefix, "bin")
	shadows := filepath.Join(prefix, "lib/tranche")
	must.NoError(t, os.MkdirAll(bin, 0o755))
	must.NoError(t, os.MkdirAll(shadows, 0o755))

	var nothing runtime.Config
	setInstalled(&nothing, bin)
	must.Eq(t, runtime.Config{}, nothing)

	for _, file := range []string{filepath.Join(bin, "tranche-hook"), filepath.Join(bin, "tranche"), filepath.Join(shadows, "libcuda.so.1")} {
		must.NoError(t, os.WriteFile(file, nil, 0o755))
	}
	var found runtime.Config
	setInstalled(&found, bin)
	must.Eq(t, runtime.Config{Node: edit.Node{
		HookPath: filepath.Join(bin, "tranche-hook"), CLIPath: filepath.Join(bin, "tranche"), ShadowDir: shadows,
	}}, found)

	given := runtime.Config{Node: edit.Node{HookPath: "/h", CLIPath: "/c", ShadowDir: "/s"}}
	setInstalled(&given, bin)
	must.Eq(t, runtime.Config{Node: edit.Node{HookPath: "/h", CLIPath: "/c", ShadowDir: "/s"}}, given)
}

func TestConfig_Volumes(t *testing.T) {
	var config Config
	hclutils.NewConfigParser(ConfigSpec).ParseHCL(t, `config {
		volumes {
			enabled      = true
			selinuxlabel = "z"
		}
		volume_dir = "/srv/volumes"
	}`, &config)
	must.Eq(t, VolumesConfig{Enabled: true, SelinuxLabel: "z"}, config.Volumes)
	must.Eq(t, "/srv/volumes", config.VolumesRoot())
	must.NoError(t, config.Check())

	config = Config{}
	hclutils.NewConfigParser(ConfigSpec).ParseHCL(t, "config {\n}", &config)
	must.False(t, config.Volumes.Enabled, must.Sprint("the host's paths must be closed unless the operator opens them"))
	must.Eq(t, defaultVolumeDir, config.VolumesRoot())
	config.VolumeDir = "volumes"
	must.ErrorContains(t, config.Check(), `plugin option volume_dir = "volumes"`)
}

func TestDanglingContainers_Check(t *testing.T) {
	good := DanglingContainers{Enabled: true, Period: "5m", CreationGrace: "1m30s"}
	must.NoError(t, good.check())
	must.NoError(t, DanglingContainers{}.check())
	for option, edit := range map[string]func(*DanglingContainers){
		`gc.dangling_containers.period = "often"`:       func(c *DanglingContainers) { c.Period = "often" },
		`gc.dangling_containers.period = "0s"`:          func(c *DanglingContainers) { c.Period = "0s" },
		`gc.dangling_containers.creation_grace = "-1m"`: func(c *DanglingContainers) { c.CreationGrace = "-1m" },
	} {
		bad := good
		edit(&bad)
		must.ErrorContains(t, bad.check(), option)
		must.ErrorContains(t, bad.check(), "a length of time greater than zero")
	}
}
