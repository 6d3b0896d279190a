package driver

import (
	"fmt"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"
)

// checkRuntime checks the option runtime.
func (c *TaskConfig) checkRuntime(plugin *Config) error {
	if c.Runtime != "" && !plugin.allows(c.Runtime) {
		return fmt.Errorf("option runtime = %q: this node allows %q; the operator can allow more with the plugin's "+
			"allow_runtimes", c.Runtime, append([]string{plugin.Runtime}, plugin.AllowRuntimes...))
	}
	return nil
}

// runtimeOptions are what the shims of runc and its like take; others get none.
func runtimeOptions(runtime string) any {
	if strings.HasPrefix(runtime, "io.containerd.runc.") {
		return &options.Options{}
	}
	return nil
}
