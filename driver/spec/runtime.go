package spec

import (
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/driver/ociruntime"
)

// withSpecVersion sets the version of OCI's specification by which a container's spec is to be read. crun up to 1.8 refuses
// any after 1.0, and what later versions added is optional for runtimes.
var withSpecVersion = specOption(func(s *Spec) error {
	s.Version = "1.0.2"
	return nil
})

// OCIRuntime returns the runtime of the task, with the path of its program.
func (c *TaskConfig) OCIRuntime(plugin *Config) (ociruntime.Runtime, error) {
	name, option := c.Runtime, "option runtime"
	if name == "" {
		name, option = plugin.Runtime, "plugin option runtime"
	}
	r, err := ociruntime.Parse(name)
	if err == nil {
		r, err = r.Installed()
	}
	if err != nil {
		return r, fmt.Errorf("%s = %q: %w", option, name, err)
	}
	return r, nil
}

// checkRuntime checks the option runtime.
func (c *TaskConfig) checkRuntime(plugin *Config) error {
	if c.Runtime == "" {
		return nil
	}
	if _, err := ociruntime.Parse(c.Runtime); err != nil {
		return fmt.Errorf("option runtime = %q: %w", c.Runtime, err)
	}
	if !plugin.allowsRuntime(c.Runtime) {
		return fmt.Errorf("option runtime = %q: this node allows %q; the operator can allow more with the plugin's "+
			"allow_runtimes", c.Runtime, plugin.Runtimes())
	}
	return nil
}

// Runtimes returns the names of the runtimes that tasks may have.
func (c *Config) Runtimes() []string { return append([]string{c.Runtime}, c.AllowRuntimes...) }

// allowsRuntime reports whether a task may name the runtime.
func (c *Config) allowsRuntime(name string) bool {
	asked, err := ociruntime.Parse(name)
	return err == nil && slices.ContainsFunc(c.Runtimes(), func(allowed string) bool {
		r, err := ociruntime.Parse(allowed)
		return err == nil && r.Same(asked)
	})
}

// checkRuntimes checks the names of runtimes in the plugin's configuration.
func (c *Config) checkRuntimes() error {
	if _, err := ociruntime.Parse(c.Runtime); err != nil {
		return fmt.Errorf("plugin option runtime = %q: %w", c.Runtime, err)
	}
	for _, name := range c.AllowRuntimes {
		if _, err := ociruntime.Parse(name); err != nil {
			return fmt.Errorf("plugin option allow_runtimes: %q: %w", name, err)
		}
	}
	return nil
}
