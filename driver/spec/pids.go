package spec

import (
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"
)

// anyPids is the pids_limit of tasks that may have any number of processes.
const anyPids = -1

// MaxPids returns how many processes and threads the task may have: its own limit, else the plugin's; 0 for any number.
func (c *TaskConfig) MaxPids(plugin *Config) int64 {
	if c.PidsLimit != 0 {
		return max(c.PidsLimit, 0)
	}
	return plugin.PidsLimit
}

// withPidsLimit bounds the number of processes and threads.
func withPidsLimit(options *TaskConfig, plugin *Config) oci.SpecOpts {
	limit := options.MaxPids(plugin)
	if limit == 0 {
		return specOption(func(*Spec) error { return nil })
	}
	return oci.WithPidsLimit(limit)
}

// checkPidsLimit checks the task's pids_limit. The plugin's is a ceiling.
func (c *TaskConfig) checkPidsLimit(plugin *Config) error {
	switch {
	case c.PidsLimit < anyPids:
		return fmt.Errorf("option pids_limit = %d: must be greater than zero, %d for any number, or left out", c.PidsLimit,
			anyPids)
	case plugin.PidsLimit > 0 && (c.PidsLimit == anyPids || c.PidsLimit > plugin.PidsLimit):
		return fmt.Errorf("option pids_limit = %d: this node allows at most %d, the plugin's pids_limit", c.PidsLimit,
			plugin.PidsLimit)
	}
	return nil
}

// checkPidsLimit checks the plugin's pids_limit.
func (c *Config) checkPidsLimit() error {
	if c.PidsLimit < 0 {
		return fmt.Errorf("plugin option pids_limit = %d: must be greater than zero, or 0 for any number", c.PidsLimit)
	}
	return nil
}
