package driver

import (
	"fmt"
	"path"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"tranche.dev/tranche/runtime"
)

// What network_mode may be; empty means the group's network where there is one, else the host's.
const (
	networkHost   = "host"
	networkBridge = "bridge"
	networkNone   = "none"
)

// TaskConfig is the config block of a task.
type TaskConfig struct {
	// Image is a reference ("busybox", "ghcr.io/a/b:1", "a@sha256:…"), or an archive in the task's directories
	// ("oci-archive:local/x.tar", "docker-archive:local/x.tar").
	Image string `codec:"image"`
	// ImagePullTimeout bounds the pull; empty means the plugin's image_pull_timeout.
	ImagePullTimeout string `codec:"image_pull_timeout"`
	// ForcePull asks the registry even where containerd has the image already.
	ForcePull bool `codec:"force_pull"`
	// Entrypoint replaces the image's. With it the image's command is dropped.
	Entrypoint []string `codec:"entrypoint"`
	// Command, and Args after it, replace the image's command.
	Command string   `codec:"command"`
	Args    []string `codec:"args"`
	// WorkDir is the working directory in the container; empty means the image's.
	WorkDir string `codec:"work_dir"`
	// NetworkMode is host, bridge or none.
	NetworkMode string `codec:"network_mode"`
	// Runtime is the containerd runtime; the operator's allow_runtimes says which are allowed.
	Runtime string `codec:"runtime"`
	// GPUHostMemory is how much the task may allocate beyond its limit of GPU memory, such as "4GiB": managed memory that
	// lives on the host. A task with slices of several GPUs has it on the first. The operator's gpu_host_memory_max says
	// how much is allowed.
	GPUHostMemory string `codec:"gpu_host_memory"`
}

// taskConfigSpec is the schema of TaskConfig.
var taskConfigSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"image":              hclspec.NewAttr("image", "string", true),
	"image_pull_timeout": hclspec.NewAttr("image_pull_timeout", "string", false),
	"force_pull":         hclspec.NewAttr("force_pull", "bool", false),
	"entrypoint":         hclspec.NewAttr("entrypoint", "list(string)", false),
	"command":            hclspec.NewAttr("command", "string", false),
	"args":               hclspec.NewAttr("args", "list(string)", false),
	"work_dir":           hclspec.NewAttr("work_dir", "string", false),
	"network_mode":       hclspec.NewAttr("network_mode", "string", false),
	"runtime":            hclspec.NewAttr("runtime", "string", false),
	"gpu_host_memory":    hclspec.NewAttr("gpu_host_memory", "string", false),
})

// decodeTaskConfig reads and checks a task's config block. Every error names the option, its value and what it may be.
func decodeTaskConfig(cfg *drivers.TaskConfig, plugin *Config) (*TaskConfig, error) {
	var c TaskConfig
	if err := cfg.DecodeDriverConfig(&c); err != nil {
		return nil, fmt.Errorf("read the task's config block: %w", err)
	}
	return &c, c.validate(plugin)
}

func (c *TaskConfig) validate(plugin *Config) error {
	if c.Image == "" {
		return fmt.Errorf("option image must not be empty: name an image, such as \"docker.io/library/busybox:1.36\"")
	}
	if _, err := parseImage(c.Image); err != nil {
		return err
	}
	if c.WorkDir != "" && !path.IsAbs(c.WorkDir) {
		return fmt.Errorf("option work_dir = %q: must be an absolute path in the container", c.WorkDir)
	}
	switch c.NetworkMode {
	case "", networkHost, networkBridge, networkNone:
	default:
		return fmt.Errorf("option network_mode = %q: must be %q, %q or %q",
			c.NetworkMode, networkHost, networkBridge, networkNone)
	}
	if c.Runtime != "" && !plugin.allows(c.Runtime) {
		return fmt.Errorf("option runtime = %q: this node allows %q; the operator can allow more with the plugin's "+
			"allow_runtimes", c.Runtime, append([]string{plugin.Runtime}, plugin.AllowRuntimes...))
	}
	if _, err := c.gpuHostMemoryBytes(plugin); err != nil {
		return err
	}
	if c.ImagePullTimeout != "" {
		return checkDuration("option image_pull_timeout", c.ImagePullTimeout)
	}
	return nil
}

// gpuHostMemoryBytes is gpu_host_memory, of which validate has made sure.
func (c *TaskConfig) gpuHostMemoryBytes(plugin *Config) (uint64, error) {
	most, err := plugin.gpuHostMemoryMaxBytes()
	if err != nil {
		return 0, err
	}
	return runtime.GPUHostMemory("option gpu_host_memory", c.GPUHostMemory, most)
}

// pullTimeout is how long the pull of this task's image may take. Both values have been validated.
func (c *TaskConfig) pullTimeout(plugin *Config) time.Duration {
	value := c.ImagePullTimeout
	if value == "" {
		value = plugin.ImagePullTimeout
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		d, _ = time.ParseDuration(defaultPullTimeout)
	}
	return d
}
