// Package cli is the operator's command line.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/internal/cli/private"
	"github.com/tranche-gpu/tranche/internal/printable"
	"github.com/tranche-gpu/tranche/runtime"
)

// Exit codes of Tranche itself. Under `tranche run` every other one is the command's own; these follow what shells and
// env(1) do.
const (
	exitFailure       = 1
	exitOwnFailure    = 125 // `tranche run` failed before there was a command
	exitCannotExecute = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal's number
)

// app is what the commands need of the world around them.
type app struct {
	version        string
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	configFile     string // of tranche-runtime

	openNVML    func(driverRoot string) nvml.Interface
	contextCost func(ctx context.Context, o contextcost.Options, gpu contextcost.GPU) (uint64, error)
}

// Main runs the command line and returns the exit code.
func Main(version string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := newApp(version)
	a.stdin, a.stdout, a.stderr = stdin, stdout, stderr
	return a.main(args)
}

// Command returns the command line with all its commands, for what documents it.
func Command(version string) *cobra.Command { return newApp(version).command() }

func newApp(version string) *app {
	return &app{
		version: version,
		environ: os.Environ(), configFile: runtime.DefaultConfigFile,
		openNVML: func(driverRoot string) nvml.Interface { return nvml.New(driverRoot) },
		contextCost: func(ctx context.Context, o contextcost.Options, gpu contextcost.GPU) (uint64, error) {
			return contextcost.NewMeter(o).Cost(ctx, gpu)
		},
	}
}

// exitError is an error that decides the exit code. Without an error in it, there is nothing to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprint(e.err) }
func (e *exitError) Unwrap() error { return e.err }

func (a *app) main(args []string) int {
	root := a.command()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	code := exitFailure
	if cmd.Name() == runName {
		code = exitOwnFailure
	}
	var exit *exitError
	if errors.As(err, &exit) {
		code, err = exit.code, exit.err
	}
	if err != nil {
		fmt.Fprintf(a.stderr, "tranche: %s\n", printable.Lines(err.Error()))
	}
	return code
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "tranche",
		Short:         "Share GPUs: run programs under a memory limit, and show GPUs and claims",
		Version:       a.version,
		SilenceErrors: true,
		SilenceUsage:  true,

		PersistentPreRunE: a.followConfig,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(a.runCommand(), a.statusCommand(), a.usageCommand(), a.claimCommand(), a.cdiCommand(), a.versionCommand(),
		a.nodeInfoCommand(), a.cdiHookCommand(),
		a.installCommand(), a.uninstallCommand(), a.doctorCommand(), a.explainCommand(),
		a.agentCommand(), a.fleetCommand(), a.topCommand(), a.governorCommand(), a.driverLimitsCommand())
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if !cmd.Runnable() { // cobra shows its help then, also where a command below it is misspelled, and succeeds
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	return root
}

// withUsage has the error for wrong arguments say which there are to be.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w; the usage is: %s", err, cmd.UseLine())
		}
		return nil
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run:   func(*cobra.Command, []string) { fmt.Fprintln(a.stdout, a.version) },
	}
}

// place is where on the node things are; each command has the flags for it that it needs. followConfig gives those that the
// command line leaves out the values of the node's configuration.
type place struct {
	driverRoot, stateDir, runDir string
}

func (p *place) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.driverRoot, "driver-root", runtime.DefaultDriverRoot,
		"directory `tree` with the GPU driver's libraries")
	cmd.Flags().StringVar(&p.stateDir, "state-dir", claim.DefaultStateDir, "`directory` of the ledger")
	cmd.Flags().StringVar(&p.runDir, "run-dir", claim.DefaultRunDir, "`directory` of the regions")
}

const defaultSliceMemory = "1GiB"

// addSliceMemory adds the flag for the size of a slice where neither the device plugin nor a claim says it.
func addSliceMemory(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "slice-memory", defaultSliceMemory, "`size` of a slice, for GPUs for which neither the device plugin nor a claim states it")
}

// stated is the value of a flag that may be left out and may not be empty: `--share "$SHARE"` in a script in which the variable
// is not set would otherwise be as if nothing was asked for.
type stated string

func (s *stated) Set(text string) error {
	if text == "" {
		return errors.New("it is empty; state a value, or leave the flag out")
	}
	*s = stated(text)
	return nil
}

func (s *stated) String() string { return string(*s) }

// Type is what the help calls the value unless the flag's description has another name for it.
func (s *stated) Type() string { return "string" }

// getenv returns a variable of the environment; "" if it is not set.
func (a *app) getenv(name string) string {
	value, _ := private.LookupEnv(a.environ, name)
	return value
}

// logger is for what happens on the way and does not stop a command.
func (a *app) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "tranche", Level: hclog.Warn, Output: a.stderr, DisableTime: true})
}

// printJSON writes a value for programs.
func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
