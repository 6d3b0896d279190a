package spec

import (
	"errors"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclspecutils"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/storage"
)

func TestTaskConfig_Schema(t *testing.T) {
	var got TaskConfig
	hclutils.NewConfigParser(TaskConfigSpec).ParseHCL(t, `config {
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

// readTask reads a task's options as Nomad does, by the schema, and checks them as the driver does.
func readTask(t *testing.T, plugin *Config, options string) (*TaskConfig, error) {
	t.Helper()
	spec, diags := hclspecutils.Convert(TaskConfigSpec)
	must.False(t, diags.HasErrors())
	block := hclutils.HclConfigToInterface(t, "config {\nimage = \"busybox\"\n"+options+"\n}")
	value, diags, errs := hclutils.ParseHclInterface(block, spec, nil)
	if diags.HasErrors() {
		return nil, errors.Join(append(errs, diags)...)
	}
	cfg := &drivers.TaskConfig{}
	must.NoError(t, cfg.EncodeDriverConfig(value))
	return DecodeTask(cfg, plugin)
}
