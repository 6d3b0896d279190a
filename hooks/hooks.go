// Package hooks is tranche-hook, the OCI hooks for what a container's spec cannot express.
//
// Before the container's process starts, prestart binds the container's claims to it; when the container is gone, poststop
// releases them. Both run as root outside the container. In between, createContainer runs in the container's mount namespace
// and shadows the driver copies in it. All have an environment of their own, and trust nothing from the container's image.
package hooks

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/oneline"
)

const usage = "usage: tranche-hook prestart|poststop|createContainer --state-dir DIR --run-dir DIR --claim ID… " +
	"[--driver-limits-by PATH --driver-root DIR] [--shadow-dir DIR [--governed | --compute-only] | --unlimited] [--gpu-node PATH…]; " +
	"OCI runtimes call it, with a container's state on its standard input"

// Program is Main for a process of its own, which first drops the privileges that it does not need. The role in the container's
// mount namespace needs them to mount.
func Program(args []string, stdin io.Reader, stderr io.Writer) int {
	err := closeProc()
	if err == nil && len(args) > 1 && (args[1] == "prestart" || args[1] == "poststop") {
		err = dropPrivileges()
	}
	if err != nil {
		fmt.Fprintf(stderr, "tranche-hook: %s\n", oneline.Of(err))
		return 1
	}
	return Main(args, stdin, stderr)
}

// Patience is how long a hook takes at most: ledgerPatience for the ledger, and undoPatience to undo changes afterwards. OCI
// runtimes kill a hook that takes longer than its timeout in the spec, and its error is lost.
const (
	ledgerPatience = 20 * time.Second
	undoPatience   = 5 * time.Second
	Patience       = ledgerPatience + undoPatience
)

// Main runs the role in the arguments and returns the exit status. An error is one line, since OCI runtimes include it in
// their own.
func Main(args []string, stdin io.Reader, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), ledgerPatience)
	defer cancel()
	if err := run(ctx, args[1:], stdin); err != nil {
		fmt.Fprintf(stderr, "tranche-hook: %s\n", oneline.Of(err))
		return 1
	}
	return 0
}

func run(ctx context.Context, args []string, stdin io.Reader) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	role, args := args[0], args[1:]
	switch role {
	case "prestart":
		return withContainer(ctx, args, stdin, prestart)
	case "poststop":
		return withContainer(ctx, args, stdin, poststop)
	case "createContainer":
		return inContainer(args, stdin, createContainer)
	default:
		return fmt.Errorf("unknown hook %q; %s", role, usage)
	}
}

// withContainer calls a role with the claims in the arguments and the container's state.
func withContainer(ctx context.Context, args []string, stdin io.Reader,
	role func(context.Context, *claim.Ledger, options, *specs.State) error,
) error {
	opts, err := parseOptions(args)
	if err != nil {
		return fmt.Errorf("%w; %s", err, usage)
	}
	state, err := readState(stdin)
	if err != nil {
		return err
	}
	ledger, err := claim.Open(claim.Options{StateDir: opts.stateDir, RunDir: opts.runDir})
	if err != nil {
		return fmt.Errorf("open the ledger of claims: %w", err)
	}
	return role(ctx, ledger, opts, state)
}

// inContainer calls a role that runs in the container's namespaces. One of them may be a user namespace, in which the ledger
// cannot be read.
func inContainer(args []string, stdin io.Reader, role func(options, *specs.State) error) error {
	opts, err := parseOptions(args)
	if err == nil && (opts.shadowDir == "") != opts.unlimited {
		err = errors.New("exactly one of --shadow-dir and --unlimited is required")
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, usage)
	}
	state, err := readState(stdin)
	if err != nil {
		return err
	}
	return role(opts, state)
}

type options struct {
	stateDir  string
	runDir    string
	shadowDir string
	// unlimited reports that no claim of the container has a limit, so that it gets no shadow.
	unlimited bool
	// governed reports that the container's programs compute in turns.
	governed bool
	// computeOnly reports that they do, and that the driver limits their memory.
	computeOnly bool
	claims      []string
	// cli is the command tranche, if the GPU driver is to enforce limits, and driverRoot where that driver is.
	cli, driverRoot string
	// gpuNodes are the paths of NVIDIA's device nodes that the container has for its claims.
	gpuNodes []string
}

func parseOptions(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("tranche-hook", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&opts.stateDir, "state-dir", "", "")
	flags.StringVar(&opts.runDir, "run-dir", "", "")
	flags.StringVar(&opts.shadowDir, "shadow-dir", "", "")
	flags.BoolVar(&opts.unlimited, "unlimited", false, "")
	flags.BoolVar(&opts.governed, "governed", false, "")
	flags.BoolVar(&opts.computeOnly, "compute-only", false, "")
	flags.StringVar(&opts.cli, "driver-limits-by", "", "")
	flags.StringVar(&opts.driverRoot, "driver-root", "", "")
	flags.Func("gpu-node", "", func(path string) error {
		opts.gpuNodes = append(opts.gpuNodes, path)
		return nil
	})
	flags.Func("claim", "", func(id string) error {
		opts.claims = append(opts.claims, id)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case opts.stateDir == "" || opts.runDir == "":
		return options{}, errors.New("--state-dir and --run-dir are required")
	case len(opts.claims) == 0:
		return options{}, errors.New("--claim is required")
	}
	return opts, nil
}
