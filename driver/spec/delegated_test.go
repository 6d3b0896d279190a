package spec

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/runtime/compute"
)

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
			err := task.Check(&Config{Runtime: ociruntime.Runc, GPUHostMemoryMax: c.allowed})
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestTaskConfig_GPUCompute(t *testing.T) {
	allowed := &Config{Runtime: ociruntime.Runc, GPUComputeMaxShare: "50%", GPUComputeHighPriority: true}
	none := &Config{Runtime: ociruntime.Runc}
	for _, c := range []struct {
		options string
		plugin  *Config
		want    compute.Request
		err     string
	}{
		{"", none, compute.Request{}, ""},
		{"gpu_compute { share = 30 }", none, compute.Request{Share: 300}, ""},
		{`gpu_compute {
			share    = 33.3
			max      = 50
			priority = "high"
		}`, allowed, compute.Request{Share: 333, Max: 500, Class: claim.ClassHigh}, ""},
		{`gpu_compute { priority = "best-effort" }`, none, compute.Request{Class: claim.ClassBestEffort}, ""},
		{`gpu_compute { priority = "high" }`, none, compute.Request{}, "option gpu_compute.priority: this node allows no priority " +
			`"high"; the operator can allow it with gpu_compute_high_priority = true`},
		{`gpu_compute { priority = "urgent" }`, allowed, compute.Request{}, `option gpu_compute.priority: "urgent" is no priority`},
		{"gpu_compute { share = 0 }", allowed, compute.Request{}, "option gpu_compute.share must be a number of percent from 0.1 to 100 with at most one decimal place, got 0"},
		{"gpu_compute { max = 33.33 }", allowed, compute.Request{}, "option gpu_compute.max must be a number of percent"},
		{`gpu_compute {
			share = 60
			max   = 50
		}`, allowed, compute.Request{}, "option gpu_compute: the share, 60%, is more than the ceiling max, 50%"},
		{"gpu_compute {}", allowed, compute.Request{}, "option gpu_compute is empty"},
		{`gpu_compute { share = "much" }`, allowed, compute.Request{}, `option gpu_compute.share must be a number of percent`},
		{"gpu_compute { weight = 3 }", allowed, compute.Request{}, "weight"},
	} {
		t.Run(c.options, func(t *testing.T) {
			task, err := readTask(t, c.plugin, c.options)
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				return
			}
			must.NoError(t, err)
			got, err := task.GPUOptions(c.plugin)
			must.NoError(t, err)
			must.Eq(t, c.want, got.Compute)
		})
	}
}

func TestConfig_Images(t *testing.T) {
	cases := []struct {
		name   string
		config Config
		want   string
	}{
		{"nothing", Config{}, ""},
		{"a helper", Config{Auth: image.CredentialSources{Helper: "ecr-login"}}, ""},
		{"collection", Config{GC: GC{Image: true, ImageDelay: "3m"}, PullActivityTimeout: "1m"}, ""},
		{"no collection", Config{GC: GC{ImageDelay: "never"}}, ""},
		{"a delay that is none", Config{GC: GC{Image: true, ImageDelay: "never"}},
			`plugin option gc.image_delay = "never": must be a length of time`},
		{"no patience", Config{PullActivityTimeout: "0s"}, `plugin option pull_activity_timeout = "0s": must be`},
		{"a helper elsewhere", Config{Auth: image.CredentialSources{Helper: "../sh"}},
			`plugin option auth.helper = "../sh": must be the end of a program's name`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.config.ContainerdAddress, c.config.Namespace = defaultAddress, defaultNamespace
			c.config.Runtime, c.config.Snapshotter = ociruntime.Runc, DefaultSnapshotter
			c.config.ImagePullTimeout = "1m"
			err := c.config.Check()
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, c.want)
		})
	}
}

func TestTaskConfig_ImageErrorsAreAllReturned(t *testing.T) {
	err := (&TaskConfig{Image: "Not An Image", Platform: "pdp11", ImagePullTimeout: "soon",
		Auth: image.Auth{Username: "u"}}).checkImage(&Config{})
	for _, want := range []string{`option image = "Not An Image"`, `option platform = "pdp11"`,
		`option image_pull_timeout = "soon"`, "option auth.password"} {
		must.ErrorContains(t, err, want)
	}
}

func TestCheckGPU_Requests(t *testing.T) {
	for name, block := range map[string]string{
		"memory":  `annotations = { "dev.tranche/gpu-memory" = "8GiB" }`,
		"a GPU":   `annotations = { "dev.tranche/gpu" = "0" }`,
		"compute": `annotations = { "dev.tranche/gpu-compute" = "50%" }`,
		"CDI":     `devices = ["tranche.dev/slice=8GiB"]`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readTask(t, &Config{AllowDevices: []string{"tranche.dev/slice=*"}}, block)
			must.ErrorContains(t, err, "tranche")
			must.ErrorContains(t, err, `device "nvidia/slice"`)
			must.StrNotContains(t, err.Error(), "use another")
			_, err = readTask(t, &Config{}, block)
			must.Error(t, err)
			must.StrNotContains(t, err.Error(), "allow_devices")
		})
	}
	_, err := readTask(t, &Config{}, `annotations = { "com.example/gpu-memory" = "8GiB" }`)
	must.NoError(t, err)
}
