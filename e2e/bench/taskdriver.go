package main

import (
	"fmt"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// taskDriver is a task driver in a process of its own, spoken to as a Nomad agent does.
type taskDriver struct {
	drivers.DriverPlugin
	// variant is its name in the results.
	variant string
	// taskConfig is what a task's config block has.
	taskConfig map[string]any
	process    *plugin.Client
}

// startDriver starts the plugin and configures it.
func startDriver(variant, binary string, config, taskConfig map[string]any, logger hclog.Logger) (*taskDriver, error) {
	process, raw, err := startPlugin(binary, nil, base.PluginTypeDriver, drivers.NewDriverPlugin(nil, logger), logger)
	if err != nil {
		return nil, err
	}
	driver, ok := raw.(drivers.DriverPlugin)
	if !ok {
		err = fmt.Errorf("it is no task driver but a %T", raw)
	} else {
		err = configure(driver, config, drivers.ApiVersion010, &base.AgentConfig{Driver: &base.ClientDriverConfig{}})
	}
	if err != nil {
		process.client.Kill()
		return nil, fmt.Errorf("start the plugin %s: %w", binary, err)
	}
	return &taskDriver{DriverPlugin: driver, variant: variant, taskConfig: taskConfig, process: process.client}, nil
}

// trancheConfig is the configuration of our driver, as the agent hands it over with the schema's defaults filled in.
func trancheConfig(containerdAddress, dir, runtime string) map[string]any {
	if runtime == dockerRuntime {
		runtime = "io.containerd.runc.v2"
	}
	return map[string]any{
		"containerd_address":     containerdAddress,
		"namespace":              trancheNamespace,
		"runtime":                runtime,
		"snapshotter":            snapshotter,
		"image_pull_timeout":     "5m",
		"gpu_host_memory_max":    "0",
		"allow_caps":             capabilities.NomadDefaults().Slice(false),
		"disable_log_collection": true,
		"state_dir":              filepath.Join(dir, "state"),
		"run_dir":                filepath.Join(dir, "run"),
		"volume_dir":             filepath.Join(dir, "volumes"),
	}
}

// dockerConfig is the same of Nomad's docker driver. It keeps the image, and nothing is logged, as with ours.
func dockerConfig(host string) map[string]any {
	return map[string]any{
		"endpoint":               host,
		"image_pull_timeout":     "5m",
		"pull_activity_timeout":  "2m",
		"allow_caps":             capabilities.NomadDefaults().Slice(false),
		"allow_runtimes":         []string{dockerRuntime},
		"disable_log_collection": true,
		"logging":                map[string]any{"type": "none"},
		"gc":                     map[string]any{"image": false, "container": true},
	}
}
