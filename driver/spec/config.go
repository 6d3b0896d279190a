package spec

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

// Defaults of the plugin's configuration.
const (
	defaultAddress   = "/run/containerd/containerd.sock"
	defaultNamespace = "nomad"
	// DefaultSnapshotter is the snapshotter where the operator names none.
	DefaultSnapshotter      = "overlayfs"
	defaultRegistryHostsDir = "/etc/containerd/certs.d"
	defaultPullTimeout      = "5m"
	// defaultPullActivityTimeout is docker's.
	defaultPullActivityTimeout = "2m"
	defaultVolumeDir           = "/var/lib/tranche/volumes"
)

// Config is the plugin's block in the agent's configuration.
type Config struct {
	// ContainerdAddress is the path of containerd's socket.
	ContainerdAddress string `codec:"containerd_address"`
	// Namespace is the containerd namespace of all that the driver makes.
	Namespace string `codec:"namespace"`
	// Runtime is the containerd runtime of tasks that name none; AllowRuntimes are those that a task may name as well.
	Runtime       string   `codec:"runtime"`
	AllowRuntimes []string `codec:"allow_runtimes"`
	Snapshotter   string   `codec:"snapshotter"`
	// Auth is where credentials for registries come from, for tasks without an auth block.
	Auth image.CredentialSources `codec:"auth"`
	// RegistryHostsDir holds a directory per registry with a hosts.toml, as containerd and nerdctl read it.
	RegistryHostsDir string `codec:"registry_hosts_dir"`
	// ImagePullTimeout bounds the pull of tasks that set no image_pull_timeout.
	ImagePullTimeout string `codec:"image_pull_timeout"`
	// PullActivityTimeout ends a pull that makes no progress for so long.
	PullActivityTimeout string `codec:"pull_activity_timeout"`
	// GC says when what tasks no longer use is removed.
	GC GC `codec:"gc"`

	// AllowPrivileged lets tasks be privileged. AllowCaps are the Linux capabilities that they may have. AllowDevices are
	// patterns of device paths and of names of CDI devices ("/dev/fuse", "/dev/snd/*", "nvidia.com/gpu=*") that
	// they may have. AllowHostNamespaces are those of "pid", "ipc", "uts" and "cgroup" of which they may share the host's.
	AllowPrivileged     bool     `codec:"allow_privileged"`
	AllowCaps           []string `codec:"allow_caps"`
	AllowDevices        []string `codec:"allow_devices"`
	AllowHostNamespaces []string `codec:"allow_host_namespaces"`
	// SeccompProfile is the file of the profile for tasks that name none; empty means containerd's default. SeccompDir
	// holds profiles that tasks may name.
	SeccompProfile string `codec:"seccomp_profile"`
	SeccompDir     string `codec:"seccomp_dir"`
	// Volumes sets whether tasks may mount paths of the host, and how SELinux labels them. VolumeDir holds the
	// named volumes.
	Volumes   VolumesConfig `codec:"volumes"`
	VolumeDir string        `codec:"volume_dir"`
	// UsernsRange is the range of host IDs from which tasks with userns_mode = "auto" get theirs, as "FIRST:COUNT"; empty
	// means the one that /etc/subuid and /etc/subgid set aside for "containers".
	UsernsRange string `codec:"userns_range"`
	// DynamicWorkloadUsers has Nomad give each task that names no user one of its own.
	DynamicWorkloadUsers bool `codec:"dynamic_workload_users"`
	// PidsLimit is how many processes and threads a task may have that sets no pids_limit; 0 means any number.
	PidsLimit int64 `codec:"pids_limit"`
	// OOMScoreAdj is that of tasks that set none.
	OOMScoreAdj int64 `codec:"oom_score_adj"`
	// InitPath is the init for tasks with init = true; empty means the first of the usual ones that is installed.
	InitPath string `codec:"init_path"`
	// ExtraLabels are patterns of facts that become labels of containers, as the docker driver has them.
	ExtraLabels []string `codec:"extra_labels"`
	// DisableLogCollection discards what tasks write to stdout and stderr, and has Nomad start no log process.
	DisableLogCollection bool `codec:"disable_log_collection"`
	// StatsInterval overrides Nomad's interval of statistics; empty means Nomad's.
	StatsInterval string `codec:"stats_interval"`
	// GPUHostMemoryMax is the most that a task may request with gpu_host_memory; "0" allows none.
	GPUHostMemoryMax string `codec:"gpu_host_memory_max"`
	// GPUComputeMaxShare is the most, in percent, that a task may state as its share with gpu_compute; "0" allows no more than
	// what its slices are worth. GPUComputeHighPriority allows tasks the priority "high".
	GPUComputeMaxShare     string `codec:"gpu_compute_max_share"`
	GPUComputeHighPriority bool   `codec:"gpu_compute_high_priority"`
	// DriverCapabilities are those that tasks may request by NVIDIA_DRIVER_CAPABILITIES; empty means all.
	DriverCapabilities string `codec:"driver_capabilities"`

	// Where the parts of a fraction are: see runtime.Config.
	DriverRoot  string   `codec:"driver_root"`
	ShadowDir   string   `codec:"shadow_dir"`
	HookPath    string   `codec:"hook_path"`
	CLIPath     string   `codec:"cli_path"`
	StateDir    string   `codec:"state_dir"`
	RunDir      string   `codec:"run_dir"`
	CDISpecDirs []string `codec:"cdi_spec_dirs"`
}

// VolumesConfig is the volumes block of the plugin.
type VolumesConfig struct {
	Enabled      bool   `codec:"enabled"`
	SelinuxLabel string `codec:"selinuxlabel"`
}

// GC is the gc block of the plugin.
type GC struct {
	// Image removes images that no task has used for ImageDelay. Container removes containers with their tasks.
	Image      bool   `codec:"image"`
	ImageDelay string `codec:"image_delay"`
	Container  bool   `codec:"container"`
	// DanglingContainers is about orphans.
	DanglingContainers DanglingContainers `codec:"dangling_containers"`
}

// DanglingContainers is the dangling_containers block of gc.
type DanglingContainers struct {
	Enabled bool `codec:"enabled"`
	// DryRun only logs what would be removed.
	DryRun        bool   `codec:"dry_run"`
	Period        string `codec:"period"`
	CreationGrace string `codec:"creation_grace"`
}

// ConfigSpec is the schema of Config.
var ConfigSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"containerd_address":    stringWithDefault("containerd_address", defaultAddress),
	"namespace":             stringWithDefault("namespace", defaultNamespace),
	"runtime":               stringWithDefault("runtime", ociruntime.Runc),
	"allow_runtimes":        hclspec.NewAttr("allow_runtimes", "list(string)", false),
	"snapshotter":           stringWithDefault("snapshotter", DefaultSnapshotter),
	"registry_hosts_dir":    stringWithDefault("registry_hosts_dir", defaultRegistryHostsDir),
	"image_pull_timeout":    stringWithDefault("image_pull_timeout", defaultPullTimeout),
	"pull_activity_timeout": stringWithDefault("pull_activity_timeout", defaultPullActivityTimeout),
	"auth": hclspec.NewBlock("auth", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"config": hclspec.NewAttr("config", "string", false),
		"helper": hclspec.NewAttr("helper", "string", false),
	})),
	"gc": hclspec.NewDefault(hclspec.NewBlock("gc", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"image":       boolWithDefault("image", true),
		"image_delay": stringWithDefault("image_delay", "3m"),
		"container":   boolWithDefault("container", true),
		"dangling_containers": hclspec.NewDefault(hclspec.NewBlock("dangling_containers", false,
			hclspec.NewObject(map[string]*hclspec.Spec{
				"enabled":        boolWithDefault("enabled", true),
				"dry_run":        boolWithDefault("dry_run", false),
				"period":         stringWithDefault("period", "5m"),
				"creation_grace": stringWithDefault("creation_grace", "5m"),
			})), hclspec.NewLiteral(defaultDanglingContainers)),
	})), hclspec.NewLiteral(`{ image = true, image_delay = "3m", container = true, dangling_containers = `+
		defaultDanglingContainers+` }`)),
	"allow_privileged": hclspec.NewAttr("allow_privileged", "bool", false),
	"allow_caps": hclspec.NewDefault(hclspec.NewAttr("allow_caps", "list(string)", false),
		hclspec.NewLiteral(capabilities.HCLSpecLiteral)),
	"allow_devices":         hclspec.NewAttr("allow_devices", "list(string)", false),
	"allow_host_namespaces": hclspec.NewAttr("allow_host_namespaces", "list(string)", false),
	"seccomp_profile":       hclspec.NewAttr("seccomp_profile", "string", false),
	"seccomp_dir":           hclspec.NewAttr("seccomp_dir", "string", false),
	"volumes": hclspec.NewDefault(hclspec.NewBlock("volumes", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"enabled":      hclspec.NewAttr("enabled", "bool", false),
		"selinuxlabel": hclspec.NewAttr("selinuxlabel", "string", false),
	})), hclspec.NewLiteral(`{ enabled = false }`)),
	"volume_dir":             stringWithDefault("volume_dir", defaultVolumeDir),
	"userns_range":           hclspec.NewAttr("userns_range", "string", false),
	"dynamic_workload_users": hclspec.NewAttr("dynamic_workload_users", "bool", false),
	"pids_limit":             hclspec.NewAttr("pids_limit", "number", false),
	"oom_score_adj":          hclspec.NewAttr("oom_score_adj", "number", false),
	"init_path":              hclspec.NewAttr("init_path", "string", false),
	"extra_labels":           hclspec.NewAttr("extra_labels", "list(string)", false),
	"disable_log_collection": hclspec.NewAttr("disable_log_collection", "bool", false),

	"stats_interval":            hclspec.NewAttr("stats_interval", "string", false),
	"gpu_host_memory_max":       stringWithDefault("gpu_host_memory_max", "0"),
	"gpu_compute_max_share":     stringWithDefault("gpu_compute_max_share", "0"),
	"gpu_compute_high_priority": boolWithDefault("gpu_compute_high_priority", false),
	"driver_capabilities":       hclspec.NewAttr("driver_capabilities", "string", false),
	"driver_root":               hclspec.NewAttr("driver_root", "string", false),
	"shadow_dir":                hclspec.NewAttr("shadow_dir", "string", false),
	"hook_path":                 hclspec.NewAttr("hook_path", "string", false),
	"cli_path":                  hclspec.NewAttr("cli_path", "string", false),
	"state_dir":                 hclspec.NewAttr("state_dir", "string", false),
	"run_dir":                   hclspec.NewAttr("run_dir", "string", false),
	"cdi_spec_dirs":             hclspec.NewAttr("cdi_spec_dirs", "list(string)", false),
})

// defaultDanglingContainers stands twice in the schema: for a gc block without it, and for no gc block.
const defaultDanglingContainers = `{ enabled = true, dry_run = false, period = "5m", creation_grace = "5m" }`

// DecodeConfig decodes the plugin's configuration, which is not checked yet.
func DecodeConfig(encoded []byte) (config Config, err error) {
	err = decode(func(to any) error { return base.MsgPackDecode(encoded, to) }, &config)
	if err != nil {
		return config, fmt.Errorf("read the plugin's configuration: %w", err)
	}
	return config, nil
}

// decode decodes options. No number may have a fraction, of which the decoder says only where it is in its encoding.
func decode(from func(to any) error, options any) error {
	err := from(options)
	var all any
	if err == nil || from(&all) != nil {
		return err
	}
	return cmp.Or(notWhole("", all), err)
}

// notWhole returns an error that names the number that has a fraction; nil if there is none.
func notWhole(option string, value any) error {
	switch v := value.(type) {
	case float64:
		return fmt.Errorf("option %s must be a whole number, got %v", option, v)
	case []any:
		for _, element := range v {
			if err := notWhole(option, element); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, element := range v {
			if err := notWhole(strings.TrimPrefix(option+"."+name, "."), element); err != nil {
				return err
			}
		}
	}
	return nil
}

func boolWithDefault(name string, value bool) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, "bool", false), hclspec.NewLiteral(fmt.Sprint(value)))
}

func stringWithDefault(name, value string) *hclspec.Spec {
	return hclspec.NewDefault(hclspec.NewAttr(name, "string", false), hclspec.NewLiteral(fmt.Sprintf("%q", value)))
}

// Check checks what the schema cannot see. Every error names the option.
func (c *Config) Check() error {
	for option, path := range map[string]string{
		"containerd_address": c.ContainerdAddress,
		"registry_hosts_dir": c.RegistryHostsDir,
		"driver_root":        c.DriverRoot,
		"shadow_dir":         c.ShadowDir,
		"hook_path":          c.HookPath,
		"cli_path":           c.CLIPath,
		"state_dir":          c.StateDir,
		"run_dir":            c.RunDir,
		"auth.config":        c.Auth.Config,
		"seccomp_profile":    c.SeccompProfile,
		"seccomp_dir":        c.SeccompDir,
		"volume_dir":         c.VolumeDir,
		"init_path":          c.InitPath,
	} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("plugin option %s = %q: must be an absolute path", option, path)
		}
	}
	for _, dir := range c.CDISpecDirs {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("plugin option cdi_spec_dirs = %q: must be absolute paths", c.CDISpecDirs)
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
	if err := c.checkSecurity(); err != nil {
		return err
	}
	if _, err := c.gpuHostMemoryMaxBytes(); err != nil {
		return err
	}
	if _, err := c.GPUComputeBounds(); err != nil {
		return err
	}
	if err := edit.CheckDriverCapabilities(c.DriverCapabilities); err != nil {
		return fmt.Errorf("plugin option %w", err)
	}
	if err := c.checkProcess(); err != nil {
		return err
	}
	if err := c.StoragePolicy().Check(); err != nil {
		return err
	}
	if err := c.checkImages(); err != nil {
		return err
	}
	if err := checkDuration("plugin option image_pull_timeout", c.ImagePullTimeout); err != nil {
		return err
	}
	if err := c.GC.DanglingContainers.check(); err != nil {
		return err
	}
	if c.StatsInterval != "" {
		return checkDuration("plugin option stats_interval", c.StatsInterval)
	}
	return nil
}

// check checks the block gc.dangling_containers.
func (c DanglingContainers) check() error {
	if !c.Enabled {
		return nil
	}
	if err := checkDuration("plugin option gc.dangling_containers.period", c.Period); err != nil {
		return err
	}
	return checkDuration("plugin option gc.dangling_containers.creation_grace", c.CreationGrace)
}

// Times returns the durations of the block, which Check has checked.
func (c DanglingContainers) Times() (period, grace time.Duration) {
	period, _ = time.ParseDuration(c.Period)
	grace, _ = time.ParseDuration(c.CreationGrace)
	return period, grace
}

// gpuHostMemoryMaxBytes is gpu_host_memory_max, which Check has checked.
func (c *Config) gpuHostMemoryMaxBytes() (uint64, error) {
	if c.GPUHostMemoryMax == "" {
		return 0, nil
	}
	bytes, err := size.Parse(c.GPUHostMemoryMax)
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

// RuntimeConfig returns the part of the configuration that the edits of an OCI spec need.
func (c *Config) RuntimeConfig() runtime.Config {
	r := runtime.Config{Node: edit.Node{
		DriverRoot:         c.DriverRoot,
		ShadowDir:          c.ShadowDir,
		HookPath:           c.HookPath,
		CLIPath:            c.CLIPath,
		StateDir:           c.StateDir,
		RunDir:             c.RunDir,
		CDISpecDirs:        c.CDISpecDirs,
		DriverCapabilities: c.DriverCapabilities,
	}}
	if binary, err := os.Executable(); err == nil {
		setInstalled(&r, filepath.Dir(binary))
	}
	return r.WithDefaults()
}

// setInstalled fills in paths that lie beside the directory bin of the plugin's binary, where they do: the hook and the
// command tranche in the same directory, the shadow libraries in ../lib/tranche. ../lib itself is not searched: beside
// /usr/bin that is where the GPU driver's own libcuda.so.1 may lie.
func setInstalled(r *runtime.Config, bin string) {
	for _, candidate := range []struct {
		field *string
		path  string
		file  string
	}{
		{&r.HookPath, filepath.Join(bin, "tranche-hook"), ""},
		{&r.CLIPath, filepath.Join(bin, "tranche"), ""},
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
