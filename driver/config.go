package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"tranche.dev/tranche/claim/memsize"
	"tranche.dev/tranche/runtime"
)

// Defaults of the plugin's configuration.
const (
	defaultAddress          = "/run/containerd/containerd.sock"
	defaultNamespace        = "nomad"
	defaultRuntime          = "io.containerd.runc.v2"
	defaultSnapshotter      = "overlayfs"
	defaultRegistryHostsDir = "/etc/containerd/certs.d"
	defaultPullTimeout      = "5m"
)

// Config is the plugin's block in the agent's configuration.
type Config struct {
	// ContainerdAddress is the path of containerd's socket.
	ContainerdAddress string `codec:"containerd_address"`
	// Namespace is the containerd namespace in which everything of ours lies.
	Namespace string `codec:"namespace"`
	// Runtime is the containerd runtime of tasks that name none; AllowRuntimes are those that a task may name besides.
	Runtime       string   `codec:"runtime"`
	AllowRuntimes []string `codec:"allow_runtimes"`
	Snapshotter   string   `codec:"snapshotter"`
	// RegistryHostsDir holds a directory per registry with a hosts.toml, as containerd and nerdctl read it.
	RegistryHostsDir string `codec:"registry_hosts_dir"`
	// ImagePullTimeout bounds the pull of tasks that set no image_pull_timeout.
	ImagePullTimeout string `codec:"image_pull_timeout"`
	// StatsInterval overrides how often Nomad asks for statistics; empty means as Nomad asks.
	StatsInterval string `codec:"stats_interval"`
	// GPUHostMemoryMax is the most that a task may ask for with gpu_host_memory; "0" allows none.
	GPUHostMemoryMax string `codec:"gpu_host_memory_max"`

	// Where the parts of a fraction are: see runtime.Config.
	DriverRoot  string   `codec:"driver_root"`
	ShadowDir   string   `codec:"shadow_dir"`
	HookPath    string   `codec:"hook_path"`
	StateDir    string   `codec:"state_dir"`
	RunDir      string   `codec:"run_dir"`
	CDISpecDirs []string `codec:"cdi_spec_dirs"`
}

// configSpec is the schema of Config.
var configSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"containerd_address":  stringWithDefault("containerd_address", defaultAddress),
	"namespace":           stringWithDefault("namespace", defaultNamespace),
	"runtime":             stringWithDefault("runtime", defaultRuntime),
	"allow_runtimes":      hclspec.NewAttr("allow_runtimes", "list(string)", false),
	"snapshotter":         stringWithDefault("snapshotter", defaultSnapshotter),
	"registry_hosts_dir":  stringWithDefault("registry_hosts_dir", defaultRegistryHostsDir),
	"image_pull_timeout":  stringWithDefault("image_pull_timeout", defaultPullTimeout),
	"stats_interval":      hclspec.NewAttr("stats_interval", "string", false),
	"gpu_host_memory_max": stringWithDefault("gpu_host_memory_max", "0"),
	"driver_root":         hclspec.NewAttr("driver_root", "string", false),
	"shadow_dir":          hclspec.NewAttr("shadow_dir", "string", false),
	"hook_path":           hclspec.NewAttr("hook_path", "string", false),
	"state_dir":           hclspec.NewAttr("state_dir", "string", false),
	"run_dir":             hclspec.NewAttr("run_dir", "string", false),
	"cdi_spec_dirs":       hclspec.NewAttr("cdi_spec_dirs", "list(string)", false),
})

func stringWithDefault(name, value string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, "string", false), hclspec.NewLiteral(fmt.Sprintf("%q", value)))
}

// validate checks what the schema cannot see. Every error names the option.
func (c *Config) validate() error {
	for option, path := range map[string]string{
		"containerd_address": c.ContainerdAddress,
		"registry_hosts_dir": c.RegistryHostsDir,
		"driver_root":        c.DriverRoot,
		"shadow_dir":         c.ShadowDir,
		"hook_path":          c.HookPath,
		"state_dir":          c.StateDir,
		"run_dir":            c.RunDir,
	} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("plugin option %s = %q: must be an absolute path", option, path)
		}
	}
	for option, value := range map[string]string{
		"containerd_address": c.ContainerdAddress,
		"namespace":          c.Namespace,
		"runtime":            c.Runtime,
		"snapshotter":        c.Snapshotter,
	} {
		if value == "" {
			return fmt.Errorf("plugin option %s must not be empty", option)
		}
	}
	if _, err := c.gpuHostMemoryMaxBytes(); err != nil {
		return err
	}
	if err := checkDuration("plugin option image_pull_timeout", c.ImagePullTimeout); err != nil {
		return err
	}
	if c.StatsInterval != "" {
		return checkDuration("plugin option stats_interval", c.StatsInterval)
	}
	return nil
}

// gpuHostMemoryMaxBytes is gpu_host_memory_max, of which validate has made sure.
func (c *Config) gpuHostMemoryMaxBytes() (uint64, error) {
	if c.GPUHostMemoryMax == "" {
		return 0, nil
	}
	bytes, err := memsize.Parse(c.GPUHostMemoryMax)
	if err != nil {
		return 0, fmt.Errorf("plugin option gpu_host_memory_max: %w", err)
	}
	return bytes, nil
}

// checkDuration checks the value of an option that is a length of time.
func checkDuration(option, value string) error {
	if d, err := time.ParseDuration(value); err != nil || d <= 0 {
		return fmt.Errorf("%s = %q: must be a length of time greater than zero, such as \"90s\" or \"5m\"", option, value)
	}
	return nil
}

// allows says whether a task may name the containerd runtime.
func (c *Config) allows(runtime string) bool {
	return runtime == c.Runtime || slices.Contains(c.AllowRuntimes, runtime)
}

// runtimeConfig is the part of the configuration that the edits of an OCI spec need.
func (c *Config) runtimeConfig() runtime.Config {
	r := runtime.Config{
		DriverRoot:  c.DriverRoot,
		ShadowDir:   c.ShadowDir,
		HookPath:    c.HookPath,
		StateDir:    c.StateDir,
		RunDir:      c.RunDir,
		CDISpecDirs: c.CDISpecDirs,
	}
	if binary, err := os.Executable(); err == nil {
		setInstalled(&r, filepath.Dir(binary))
	}
	return r.WithDefaults()
}

// setInstalled fills in paths that lie beside the directory bin of the plugin's binary, where they do: the hook in the
// same directory, the shadow libraries in ../lib/tranche. ../lib itself is not looked at: beside /usr/bin that is where
// the GPU driver's own libcuda.so.1 may lie.
func setInstalled(r *runtime.Config, bin string) {
	for _, candidate := range []struct {
		field *string
		path  string
		file  string
	}{
		{&r.HookPath, filepath.Join(bin, "tranche-hook"), ""},
		{&r.ShadowDir, filepath.Join(filepath.Dir(bin), "lib/tranche"), "libcuda.so.1"},
	} {
		if *candidate.field != "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(candidate.path, candidate.file)); err == nil {
			*candidate.field = candidate.path
		}
	}
}
