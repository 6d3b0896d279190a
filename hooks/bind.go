package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/bundle"
)

// prestart binds the claims to the container, all of them or none. If it fails, the OCI runtime does not start the container,
// so a claim that another container has cannot be used twice.
//
// The container's process is in its cgroup by now, and runs none of its program: the moment for the GPU driver to limit it.
func prestart(ctx context.Context, ledger *claim.Ledger, opts options, state *specs.State) error {
	if state.Pid <= 0 {
		return fmt.Errorf("bind claims to container %s: its state names no process (pid %d)", state.ID, state.Pid)
	}
	program, err := bundle.ReadProgram(state.Bundle)
	if err != nil {
		return fmt.Errorf("find the root file system of container %s: %w", state.ID, err)
	}
	if err := refuseForgedDir(state, program.RootDir); err != nil {
		return err
	}
	container := claim.Container{Runtime: callingRuntime(), ID: state.ID, InitPID: state.Pid, Lacks: lacks(program.RootDir)}
	for i, id := range opts.claims {
		if err := ledger.Bind(ctx, id, container); err != nil {
			return errors.Join(err, unbind(ctx, ledger, opts.claims[:i], container))
		}
	}
	if err := limit(ctx, opts, state); err != nil {
		return errors.Join(err, unbind(ctx, ledger, opts.claims, container))
	}
	return nil
}

// poststop releases the claims. The ledger ignores claims that are gone, or that another container has by now.
func poststop(ctx context.Context, ledger *claim.Ledger, opts options, state *specs.State) error {
	var errs []error
	for _, id := range opts.claims {
		errs = append(errs, ledger.Release(ctx, id, state.ID))
	}
	return errors.Join(errs...)
}

// unbind undoes the bindings of prestart. The container's init process may still exist, until the OCI runtime ends it.
func unbind(ctx context.Context, ledger *claim.Ledger, ids []string, container claim.Container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience) // the other context may be done
	defer cancel()
	var errs []error
	for _, id := range ids {
		errs = append(errs, ledger.Unbind(ctx, id, container))
	}
	return errors.Join(errs...)
}

// callingRuntime returns the name of the OCI runtime that runs this hook, for the claim's description.
func callingRuntime() string {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(os.Getppid()) + "/comm")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(name))
}
