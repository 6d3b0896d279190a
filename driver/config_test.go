package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/runtime"
)

func TestConfig_Validate(t *testing.T) {
	good := Config{ContainerdAddress: defaultAddress, Namespace: "nomad", Runtime: defaultRuntime,
		Snapshotter: "overlayfs", ImagePullTimeout: "5m"}
	must.NoError(t, good.validate())
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
		{"a capability that is unknown", func(c *Config) { c.DriverCapabilities = "compute,games" }, "plugin option driver_capabilities: unknown driver capability"},
		{"a relative driver root", func(c *Config) { c.DriverRoot = "root" }, "driver_root"},
		{"a relative hook", func(c *Config) { c.HookPath = "tranche-hook" }, "hook_path"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bad := good
			c.edit(&bad)
			must.ErrorContains(t, bad.validate(), c.want)
		})
	}
}

func TestConfig_DefaultsOfTheSchema(t *testing.T) {
	var config Config
	hclutils.NewConfigParser(configSpec).ParseHCL(t, `config { allow_runtimes = ["io.containerd.kata.v2"] }`, &config)
	must.NoError(t, config.validate())
	must.Eq(t, defaultAddress, config.ContainerdAddress)
	must.Eq(t, "nomad", config.Namespace)
	must.Eq(t, "5m", config.ImagePullTimeout)
	must.Eq(t, "0", config.GPUHostMemoryMax)
	must.True(t, config.allows(defaultRuntime))
	must.True(t, config.allows("io.containerd.kata.v2"))
	must.False(t, config.allows("/bin/sh"))
	must.False(t, config.allows("crun"))
}

func TestTaskConfig_Schema(t *testing.T) {
	var got TaskConfig
	hclutils.NewConfigParser(taskConfigSpec).ParseHCL(t, `config {
		image              = "busybox"
		image_pull_timeout = "1m"
		force_pull         = true
		entrypoint         = ["/e"]
		command            = "c"
		args               = ["a", "b"]
		work_dir           = "/w"
		network_mode       = "none"
		runtime            = "r"
		gpu_host_memory    = "4GiB"
	}`, &got)
	must.Eq(t, TaskConfig{Image: "busybox", ImagePullTimeout: "1m", ForcePull: true, Entrypoint: []string{"/e"},
		Command: "c", Args: []string{"a", "b"}, WorkDir: "/w", Mounts: []storage.MountConfig{}, MountsList: []storage.MountConfig{},
		NetworkMode: "none", Runtime: "r", GPUHostMemory: "4GiB"}, got)
}

func TestTaskConfig_HostMemory(t *testing.T) {
	cases := []struct{ asked, allowed, want string }{
		{"", "", ""},
		{"", "0", ""},
		{"0", "0", ""},
		{"4GiB", "4GiB", ""},
		{"1MiB", "0", `option gpu_host_memory = "1MiB": this node allows a container no host memory beyond its limit of GPU ` +
			"memory; the operator can allow more with gpu_host_memory_max"},
		{"5GiB", "4GiB", "at most 4GiB"},
		{"4GB", "8GiB", "option gpu_host_memory: 4GB is not a whole number of MiB"},
	}
	for _, c := range cases {
		t.Run(c.asked+" of "+c.allowed, func(t *testing.T) {
			task := TaskConfig{Image: "busybox", GPUHostMemory: c.asked}
			err := task.validate(&Config{Runtime: defaultRuntime, GPUHostMemoryMax: c.allowed})
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, c.want)
		})
	}
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
	must.Eq(t, runtime.Config{
		HookPath: filepath.Join(bin, "tranche-hook"), CLIPath: filepath.Join(bin, "tranche"), ShadowDir: shadows,
	}, found)

	given := runtime.Config{HookPath: "/h", CLIPath: "/c", ShadowDir: "/s"}
	setInstalled(&given, bin)
	must.Eq(t, runtime.Config{HookPath: "/h", CLIPath: "/c", ShadowDir: "/s"}, given)
}

func TestSetConfig_SaysWhatIsWrong(t *testing.T) {
	d := New(t.Context(), testLogger())
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, Config{ContainerdAddress: "nowhere"}))
	must.ErrorContains(t, d.SetConfig(&base.Config{PluginConfig: data}), `containerd_address = "nowhere"`)
}

func TestConfig_Volumes(t *testing.T) {
	var config Config
	hclutils.NewConfigParser(configSpec).ParseHCL(t, `config {
		volumes {
			enabled      = true
			selinuxlabel = "z"
		}
		volume_dir = "/srv/volumes"
	}`, &config)
	must.Eq(t, VolumesConfig{Enabled: true, SelinuxLabel: "z"}, config.Volumes)
	must.Eq(t, "/srv/volumes", config.volumeDir())
	must.NoError(t, config.validate())

	config = Config{}
	hclutils.NewConfigParser(configSpec).ParseHCL(t, "config {\n}", &config)
	must.False(t, config.Volumes.Enabled, must.Sprint("the host's paths must be closed unless the operator opens them"))
	must.Eq(t, defaultVolumeDir, config.volumeDir())
	config.VolumeDir = "volumes"
	must.ErrorContains(t, config.validate(), `plugin option volume_dir = "volumes"`)
}

// parsed reads a task's config block as Nomad does.
func parsed(t *testing.T, block string) *TaskConfig {
	t.Helper()
	var got TaskConfig
	hclutils.NewConfigParser(taskConfigSpec).ParseHCL(t, "config {\n image = \"busybox\"\n"+block+"\n}", &got)
	return &got
}
