package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/enforcement"
	"github.com/tranche-gpu/tranche/internal/cli/doctor"
	"github.com/tranche-gpu/tranche/internal/cli/install"
	"github.com/tranche-gpu/tranche/internal/printable"
	"github.com/tranche-gpu/tranche/runtime"
)

type doctorOptions struct {
	json        bool
	config      string
	runtimePath string
}

func (a *app) doctorCommand() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node, and print a remedy for each fault",
		Long: `Check this node, and print a remedy for each fault: kernel, cgroups, driver, CDI, runtimes, shadow libraries, versions,
engines, Nomad, the governor and the ledger. Run it as root. It changes nothing.

The exit status is 1 if there is a fault; warnings do not count.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), o) },
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, for programs")
	cmd.Flags().StringVar(&o.config, "config", "", "configuration `file` of Tranche (default "+a.configFile+", or what TRANCHE_CONFIG names)")
	cmd.Flags().StringVar(&o.runtimePath, "runtime-path", "", "`path` of tranche-runtime (default that of tranche install, else "+
		install.RuntimePath(install.DefaultPrefix)+")")
	return cmd
}

func (a *app) doctor(ctx context.Context, o doctorOptions) error {
	node := a.nodeToExamine(o)
	results := node.Examine(ctx)
	var err error
	if o.json {
		err = a.printJSON(results)
	} else {
		err = printResults(a.stdout, results)
	}
	if err == nil && slices.ContainsFunc(results, func(r doctor.Result) bool { return r.State == doctor.Fault }) {
		return &exitError{code: exitFailure} // the results tell the rest
	}
	return err
}

func (a *app) nodeToExamine(o doctorOptions) *doctor.Node {
	config, err := a.loadConfig()
	file := a.configPath()
	if o.config != "" {
		config, err = runtime.LoadConfig(o.config)
		file = o.config
	}
	program, _ := os.Executable() // without it, the check of the governor says so
	return &doctor.Node{
		Version: a.version, Program: program, Root: "/", Config: config, ConfigFile: file, ConfigErr: err, RuntimePath: o.findRuntime(config),
		AgentErr: agentConfigError(file),
		ReadGPUs: func(ctx context.Context) (*nvml.Node, error) { return a.readGPUs(ctx, config.DriverRoot) },
		ProbeLimits: func(ctx context.Context, uuid string) error {
			return enforcement.Probe(ctx, a.openNVML(config.DriverRoot), uuid)
		},
	}
}

// findRuntime returns where tranche-runtime is expected: where it was installed, or beside the hook that is configured.
func (o *doctorOptions) findRuntime(config runtime.Config) string {
	if o.runtimePath != "" {
		return filepath.Clean(o.runtimePath)
	}
	if record, err := install.ReadRecord(config.StateDir); err == nil && len(record.Files) > 0 {
		return record.RuntimePath()
	}
	return filepath.Join(filepath.Dir(config.HookPath), filepath.Base(install.RuntimePath("")))
}

// printResults writes the results for people: a line each, and what to do about it below.
func printResults(out io.Writer, results []doctor.Result) error {
	w := bufio.NewWriter(out) // which keeps the first error
	count := map[doctor.State]int{}
	group := ""
	for _, r := range results {
		if r.Group != group {
			group = r.Group
			fmt.Fprintf(w, "%s\n", group)
		}
		count[r.State]++
		fmt.Fprintf(w, "  %-7s  %s: %s (%s)\n", r.State, r.Check, printable.Lines(r.Found), printable.Lines(r.Looked))
		if r.Remedy != "" {
			fmt.Fprintf(w, "           to mend it: %s\n", printable.Lines(r.Remedy))
		}
	}
	fmt.Fprintf(w, "\n%s, %s, %s\n", counted(len(results), "check"), counted(count[doctor.Warning], "warning"), counted(count[doctor.Fault], "fault"))
	return w.Flush()
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
