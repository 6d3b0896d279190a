package runtime

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// refresher queries NVML: by the configuration's function, else by the command tranche.
func (c Config) refresher() gpuinfo.Refresher {
	if c.RefreshNodeInfo != nil {
		return c.RefreshNodeInfo
	}
	return c.refreshByCommand
}

// GPUs returns the GPUs of this node.
func (c Config) GPUs(ctx context.Context) ([]gpuinfo.GPU, error) {
	return c.Place().GPUs(ctx, c.refresher())
}

// refreshTimeout bounds the time that the command tranche takes to query NVML, which never returns if the driver hangs. It
// is less than PrepareTimeout, so that the error names what did not answer.
var refreshTimeout = PrepareTimeout - 10*time.Second

// refreshWaitDelay is how long the command's standard error is read after the command has ended: a process that it has
// started may hold it open.
const refreshWaitDelay = 250 * time.Millisecond

// refreshByCommand has the command tranche query NVML, since OCI runtimes are linked statically and cannot load it.
func (c Config) refreshByCommand(ctx context.Context, place gpuinfo.Place) error {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.CLIPath, "node-info", "refresh", "--driver-root", place.DriverRoot,
		"--run-dir", place.RunDir, "--state-dir", c.StateDir, "--hook", place.CLIPath)
	// Not this process's environment: a container engine may have let a job fill it.
	cmd.Env = []string{}
	var stderr bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &stderr, refreshWaitDelay
	// The command may be a script, whose processes end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("run %s node-info refresh: it did not end in time: %w; see whether the driver answers at all "+
			"(nvidia-smi)", c.CLIPath, ctx.Err())
	}
	if cmd.ProcessState != nil && err != nil {
		return fmt.Errorf("run %s node-info refresh: %w: %s", c.CLIPath, err, strings.TrimSpace(stderr.String()))
	}
	if err != nil {
		return fmt.Errorf("run %s node-info refresh: %w; install the command tranche there, or set cli_path", c.CLIPath, err)
	}
	return nil
}
