package spec

import (
	"errors"
	"fmt"
	"maps"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/storage"
)

// TaskConfig is the config block of a task. Options that Nomad's docker driver has too bear its names.
type TaskConfig struct {
	// Image is a reference ("busybox", "ghcr.io/a/b:1", "a@sha256:…"), or an archive in the task's directories
	// ("oci-archive:local/x.tar", "docker-archive:local/x.tar").
	Image string `codec:"image"`
	// ImagePullTimeout bounds the pull; empty means the plugin's image_pull_timeout.
	ImagePullTimeout string `codec:"image_pull_timeout"`
	// ForcePull queries the registry even where containerd has the image already. The tag latest does so, too, if the driver
	// has pulled the image; if the registry does not answer then, that image is used.
	ForcePull bool `codec:"force_pull"`
	// Platform is the platform of an image for several, such as "linux/amd64" or "linux/arm64/v8"; empty means the node's.
	Platform string `codec:"platform"`
	// Auth has credentials for the registry, instead of the plugin's auth. AuthSoftFail pulls without credentials where there
	// are none.
	Auth         image.Auth `codec:"auth"`
	AuthSoftFail bool       `codec:"auth_soft_fail"`

	// Entrypoint replaces the image's. With it the image's command is dropped.
	Entrypoint []string `codec:"entrypoint"`
	// Command, and Args after it, replace the image's command.
	Command string   `codec:"command"`
	Args    []string `codec:"args"`
	// WorkDir is the working directory in the container; empty means the image's.
	WorkDir string `codec:"work_dir"`
	// GroupAdd are further groups of the process, by name in the image or by number.
	GroupAdd []string `codec:"group_add"`
	// Hostname is the name that the container sees for itself.
	Hostname string `codec:"hostname"`
	// Init runs the operator's init_path as the first process, which reaps orphaned processes.
	Init bool `codec:"init"`
	// Ulimit maps the names of resource limits to "SOFT" or "SOFT:HARD".
	Ulimit Pairs `codec:"ulimit"`
	// Sysctl maps the names of kernel parameters that a namespace of the container has to values.
	Sysctl Pairs `codec:"sysctl"`
	// OOMScoreAdj makes the kernel end the task's processes sooner (up to 1000) when the node's memory is short.
	OOMScoreAdj int64 `codec:"oom_score_adj"`
	// ReadonlyRootfs lets the container write to mounts only.
	ReadonlyRootfs bool `codec:"readonly_rootfs"`
	// TTY gives the process a terminal. Interactive keeps its stdin open.
	TTY         bool `codec:"tty"`
	Interactive bool `codec:"interactive"`
	// Labels are put on the container in containerd, Annotations into its OCI spec.
	Labels      Pairs `codec:"labels"`
	Annotations Pairs `codec:"annotations"`

	// CPUHardLimit makes the task's cpu a ceiling, in periods of CPUCFSPeriod microseconds.
	CPUHardLimit bool  `codec:"cpu_hard_limit"`
	CPUCFSPeriod int64 `codec:"cpu_cfs_period"`
	// MemorySwap is how much memory and swap the task may use together ("512MiB"), "-1" for as much swap as there is;
	// empty means none beyond its memory.
	MemorySwap string `codec:"memory_swap"`
	// MemorySwappiness is from 0 (seldom) to 100; nil means as the node has it.
	MemorySwappiness *int64 `codec:"memory_swappiness"`
	// PidsLimit is how many processes and threads the task may have, -1 for any number; 0 means the plugin's pids_limit.
	PidsLimit int64 `codec:"pids_limit"`
	// ShmSize is the size of /dev/shm, as bytes or as a size ("256MiB"); empty means 64MiB.
	ShmSize string `codec:"shm_size"`

	// Mounts (mount blocks; MountsList is the form mounts = [{…}]), Volumes ("SOURCE:TARGET[:OPTIONS]") and Tmpfs
	// ("TARGET[:OPTIONS]") are put into the container.
	Mounts     []storage.MountConfig `codec:"mount"`
	MountsList []storage.MountConfig `codec:"mounts"`
	Volumes    []string              `codec:"volumes"`
	Tmpfs      []string              `codec:"tmpfs"`
	// ImageVolumes sets what the volumes that the image declares become: "anonymous" (a directory of the task's, with
	// what the image has there), "tmpfs" or "ignore".
	ImageVolumes string `codec:"image_volumes"`

	// NetworkMode is host, bridge or none.
	NetworkMode string `codec:"network_mode"`
	// ExtraHosts are lines for /etc/hosts, as "NAME:ADDRESS".
	ExtraHosts []string `codec:"extra_hosts"`
	// DNSServers, DNSSearchDomains and DNSOptions are used instead of the group's dns block.
	DNSServers       []string `codec:"dns_servers"`
	DNSSearchDomains []string `codec:"dns_search_domains"`
	DNSOptions       []string `codec:"dns_options"`

	// Privileged takes away all that separates the container from the host but its namespaces.
	Privileged bool `codec:"privileged"`
	// CapAdd and CapDrop change which Linux capabilities the process may have; allow_caps says which are allowed.
	CapAdd  []string `codec:"cap_add"`
	CapDrop []string `codec:"cap_drop"`
	// SecurityOpt are "no-new-privileges", "seccomp=…", "apparmor=…", "label=…" and "systempaths=unconfined", as docker has
	// them.
	SecurityOpt []string `codec:"security_opt"`
	// Devices are devices of the host ("/dev/fuse", "/dev/x:/dev/y:rw") and names of CDI devices ("nvidia.com/gpu=0").
	Devices []string `codec:"devices"`
	// PidMode, IPCMode, UTSMode and CgroupNS are "host" for the host's namespace, or "private". Empty means private, but for
	// CgroupNS on cgroup v1, where it means the host's.
	PidMode  string `codec:"pid_mode"`
	IPCMode  string `codec:"ipc_mode"`
	UTSMode  string `codec:"uts_mode"`
	CgroupNS string `codec:"cgroupns"`
	// Userns is "auto" for a user namespace with IDs of its own, or "host".
	Userns string `codec:"userns_mode"`

	// Runtime is "runc", "crun" or a containerd shim; the operator's allow_runtimes says which are allowed.
	Runtime string `codec:"runtime"`
	// GPUHostMemory is how much the task may allocate beyond its limit of GPU memory, such as "4GiB": managed memory that
	// lives on the host. A task with slices of several GPUs has it on the first. The operator's gpu_host_memory_max says
	// how much is allowed.
	GPUHostMemory string `codec:"gpu_host_memory"`
	// GPUCompute is the task's part of its GPUs' time, where the device plugin has compute = "shares". The operator's
	// gpu_compute_max_share and gpu_compute_high_priority say what is allowed.
	GPUCompute *GPUCompute `codec:"gpu_compute"`
}

// GPUCompute is the block gpu_compute of a task. Share and Max are in percent of a GPU, and texts because Nomad passes no
// numbers with a fraction; what is empty is not stated.
type GPUCompute struct {
	Share    string `codec:"share"`
	Max      string `codec:"max"`
	Priority string `codec:"priority"`
}

// Pairs is what an option of the schema type list(map(string)) decodes to: a block, or a map, of names and values.
type Pairs []map[string]string

// Merged returns all of them in one map.
func (m Pairs) Merged() map[string]string {
	all := map[string]string{}
	for _, part := range m {
		maps.Copy(all, part)
	}
	return all
}

// TaskConfigSpec is the schema of TaskConfig.
var TaskConfigSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"image":              hclspec.NewAttr("image", "string", true),
	"image_pull_timeout": hclspec.NewAttr("image_pull_timeout", "string", false),
	"force_pull":         hclspec.NewAttr("force_pull", "bool", false),
	"platform":           hclspec.NewAttr("platform", "string", false),
	"auth": hclspec.NewBlock("auth", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"username":       hclspec.NewAttr("username", "string", false),
		"password":       hclspec.NewAttr("password", "string", false),
		"server_address": hclspec.NewAttr("server_address", "string", false),
	})),
	"auth_soft_fail": hclspec.NewAttr("auth_soft_fail", "bool", false),

	"entrypoint":      hclspec.NewAttr("entrypoint", "list(string)", false),
	"command":         hclspec.NewAttr("command", "string", false),
	"args":            hclspec.NewAttr("args", "list(string)", false),
	"work_dir":        hclspec.NewAttr("work_dir", "string", false),
	"group_add":       hclspec.NewAttr("group_add", "list(string)", false),
	"hostname":        hclspec.NewAttr("hostname", "string", false),
	"init":            hclspec.NewAttr("init", "bool", false),
	"ulimit":          hclspec.NewAttr("ulimit", "list(map(string))", false),
	"sysctl":          hclspec.NewAttr("sysctl", "list(map(string))", false),
	"oom_score_adj":   hclspec.NewAttr("oom_score_adj", "number", false),
	"readonly_rootfs": hclspec.NewAttr("readonly_rootfs", "bool", false),
	"tty":             hclspec.NewAttr("tty", "bool", false),
	"interactive":     hclspec.NewAttr("interactive", "bool", false),
	"labels":          hclspec.NewAttr("labels", "list(map(string))", false),
	"annotations":     hclspec.NewAttr("annotations", "list(map(string))", false),

	"cpu_hard_limit":    hclspec.NewAttr("cpu_hard_limit", "bool", false),
	"cpu_cfs_period":    hclspec.NewAttr("cpu_cfs_period", "number", false),
	"memory_swap":       hclspec.NewAttr("memory_swap", "string", false),
	"memory_swappiness": hclspec.NewAttr("memory_swappiness", "number", false),
	"pids_limit":        hclspec.NewAttr("pids_limit", "number", false),
	"shm_size":          hclspec.NewAttr("shm_size", "string", false),

	"mount":         hclspec.NewBlockList("mount", storage.MountSpec),
	"mounts":        hclspec.NewBlockList("mounts", storage.MountSpec),
	"volumes":       hclspec.NewAttr("volumes", "list(string)", false),
	"tmpfs":         hclspec.NewAttr("tmpfs", "list(string)", false),
	"image_volumes": hclspec.NewAttr("image_volumes", "string", false),

	"network_mode":       hclspec.NewAttr("network_mode", "string", false),
	"extra_hosts":        hclspec.NewAttr("extra_hosts", "list(string)", false),
	"dns_servers":        hclspec.NewAttr("dns_servers", "list(string)", false),
	"dns_search_domains": hclspec.NewAttr("dns_search_domains", "list(string)", false),
	"dns_options":        hclspec.NewAttr("dns_options", "list(string)", false),

	"privileged":   hclspec.NewAttr("privileged", "bool", false),
	"cap_add":      hclspec.NewAttr("cap_add", "list(string)", false),
	"cap_drop":     hclspec.NewAttr("cap_drop", "list(string)", false),
	"security_opt": hclspec.NewAttr("security_opt", "list(string)", false),
	"devices":      hclspec.NewAttr("devices", "list(string)", false),
	"pid_mode":     hclspec.NewAttr("pid_mode", "string", false),
	"ipc_mode":     hclspec.NewAttr("ipc_mode", "string", false),
	"uts_mode":     hclspec.NewAttr("uts_mode", "string", false),
	"cgroupns":     hclspec.NewAttr("cgroupns", "string", false),
	"userns_mode":  hclspec.NewAttr("userns_mode", "string", false),

	"runtime":         hclspec.NewAttr("runtime", "string", false),
	"gpu_host_memory": hclspec.NewAttr("gpu_host_memory", "string", false),
	"gpu_compute": hclspec.NewBlock("gpu_compute", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"share":    hclspec.NewAttr("share", "string", false),
		"max":      hclspec.NewAttr("max", "string", false),
		"priority": hclspec.NewAttr("priority", "string", false),
	})),
})

// DecodeTask reads and checks a task's config block. Every error names the option, its value and what it may be.
func DecodeTask(cfg *drivers.TaskConfig, plugin *Config) (*TaskConfig, error) {
	var c TaskConfig
	if err := decode(cfg.DecodeDriverConfig, &c); err != nil {
		return nil, fmt.Errorf("read the task's config block: %w", err)
	}
	return &c, c.Check(plugin)
}

// Check checks every option, and returns all that are wrong: an error at a time would take a try for each. The checks are
// beside the options' own code.
func (c *TaskConfig) Check(plugin *Config) error {
	return errors.Join(
		c.checkImage(plugin),
		c.checkProcess(plugin),
		c.checkResources(plugin),
		c.StorageOptions().Check(plugin.StoragePolicy()),
		c.NetworkOptions().Check(),
		c.checkSecurity(plugin),
		c.checkRuntime(plugin),
		c.checkGPU(plugin),
	)
}
