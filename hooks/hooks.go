// Package hooks is tranche-hook: what has to happen when a container starts and ends and cannot be said in its spec.
//
// Before the container's process starts, prestart binds the container's claims to it; when the container is gone,
// poststop releases them. Both run as root outside the container. In between, createContainer runs in its mount
// namespace and puts the shadow over the copies of the driver that it finds there. All have an environment of their own,
// and trust nothing that comes from the container's image.
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
	"[--shadow-dir DIR | --unlimited] [--gpu-node PATH…]; OCI runtimes call it, with a container's state on its standard input"

// Program is Main for a process of its own, which first gives up what it does not need. The role in the container's mount
// namespace needs its privileges to mount.
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

// How long a hook takes at most: what it waits for the ledger in all, and what it then takes to undo what it has done. OCI
// runtimes kill one that takes longer than the container's spec allows, and what it had to say is lost.
const (
	ledgerPatience = 20 * time.Second
	undoPatience   = 5 * time.Second
	Patience       = ledgerPatience + undoPatience
)

// Main runs the role that the command line names and returns the exit status. An error is one line: OCI runtimes make
// it part of their own.
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
		return fmt.Errorf("no hook is called %q; %s", role, usage)
	}
}

// withContainer calls a role with what the command line and the container's state say.
func withContainer(ctx context.Context, args []string, stdin io.Reader,
	role func(context.Context, *claim.Ledger, []string, *specs.State) error,
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
	return role(ctx, ledger, opts.claims, state)
}

// inContainer calls a role that runs in the container's namespaces. A user namespace is one of them, so it is not given
// the ledger, which only root outside it can read.
func inContainer(args []string, stdin io.Reader, role func(options, *specs.State) error) error {
	opts, err := parseOptions(args)
	if err == nil && (opts.shadowDir == "") != opts.unlimited {
		err = errors.New("either --shadow-dir or --unlimited has to be given")
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
	// unlimited says that no claim of the container has a limit, so that it gets no shadow.
	unlimited bool
	claims    []string
	// gpuNodes are the device nodes of NVIDIA's that the container has for its claims.
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
		return options{}, errors.New("--state-dir and --run-dir have to be given")
	case len(opts.claims) == 0:
		return options{}, errors.New("no --claim is given")
	}
	return opts, nil
}
