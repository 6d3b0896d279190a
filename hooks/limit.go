package hooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/enforcement"
)

// limit has the GPU driver hold the container to the limits of its claims, if it is to enforce one. The governor does that, which
// has NVML open; where none runs, the command tranche.
func limit(ctx context.Context, opts options, state *specs.State) error {
	if opts.cli == "" {
		return nil
	}
	err := enforcement.Ask(ctx, opts.runDir, enforcement.Request{PID: state.Pid, Claims: opts.claims})
	if errors.Is(err, enforcement.ErrNoGovernor) {
		err = limitByCommand(ctx, opts, state.Pid)
	}
	if err != nil {
		return fmt.Errorf("limit the GPU memory of container %s: %w", state.ID, err)
	}
	return nil
}

func limitByCommand(ctx context.Context, opts options, pid int) error {
	args := []string{
		"driver-limits", "--driver-root", opts.driverRoot, "--state-dir", opts.stateDir, "--run-dir", opts.runDir,
		"--pid", strconv.Itoa(pid),
	}
	for _, id := range opts.claims {
		args = append(args, "--claim", id)
	}
	cmd := exec.CommandContext(ctx, opts.cli, args...)
	cmd.Env = []string{}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		return fmt.Errorf("%s driver-limits: %s", opts.cli, strings.TrimSpace(stderr.String()))
	}
	if err != nil {
		return fmt.Errorf("%w; start tranche governor, or install the command tranche there", err)
	}
	return nil
}
