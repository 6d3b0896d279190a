package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/agent/policy"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/request"
	"github.com/tranche-gpu/tranche/usage/bill"
)

// loadConfig reads the configuration of the node: the file that TRANCHE_CONFIG names, or the usual one, which may be missing.
func (a *app) loadConfig() (runtime.Config, error) {
	if path := a.getenv(runtime.ConfigEnv); path != "" {
		return runtime.LoadConfig(path)
	}
	if _, err := os.Stat(a.configFile); a.configFile == "" || errors.Is(err, fs.ErrNotExist) {
		return runtime.Config{}.WithDefaults(), nil
	}
	return runtime.LoadConfig(a.configFile)
}

// configPath is the file that loadConfig reads.
func (a *app) configPath() string {
	if path := a.getenv(runtime.ConfigEnv); path != "" {
		return path
	}
	return a.configFile
}

// agentConfigError says what of a configuration file the agent, and tranche usage, do not accept.
func agentConfigError(path string) error {
	_, wrongPolicy := policy.LoadConfig(path)
	_, wrongBill := bill.LoadConfig(path)
	return errors.Join(wrongPolicy, wrongBill)
}

// followConfig gives the flags that say where things are on the node the values of its configuration, unless the command line
// has them. It runs before every command.
func (a *app) followConfig(cmd *cobra.Command, _ []string) error {
	a.warnAboutVariables()
	var config *runtime.Config
	for _, setting := range []struct {
		flag  string
		value func() string
	}{
		{"driver-root", func() string { return config.DriverRoot }},
		{"state-dir", func() string { return config.StateDir }},
		{"run-dir", func() string { return config.RunDir }},
		{"slice-memory", func() string { return size.Format(config.SliceBytes) }},
	} {
		flag := cmd.Flags().Lookup(setting.flag)
		if flag == nil || flag.Changed {
			continue
		}
		if config == nil {
			loaded, err := a.loadConfig()
			if err != nil {
				return err
			}
			config = &loaded
		}
		if err := flag.Value.Set(setting.value()); err != nil {
			return fmt.Errorf("--%s: %w", setting.flag, err)
		}
	}
	return nil
}

// warnAboutVariables writes a line for each environment variable that is named like one of Tranche's and has no meaning.
func (a *app) warnAboutVariables() {
	var names []string
	for _, entry := range a.environ {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
	}
	for _, line := range request.Misspelled(names) {
		fmt.Fprintf(a.stderr, "tranche: warning: %s\n", line)
	}
}
