package runtime

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/tranche-gpu/tranche/runtime/nodeinfo"
)

// nodePlace is where what NVML says of this node is kept.
func (c Config) nodePlace() nodeinfo.Place {
	return nodeinfo.Place{DriverRoot: c.DriverRoot, RunDir: c.RunDir, CLIPath: c.CLIPath}
}

// refresher is what asks NVML: the one of the configuration, else the command tranche.
func (c Config) refresher() nodeinfo.Refresher {
	if c.RefreshNodeInfo != nil {
		return c.RefreshNodeInfo
	}
	return c.refreshByCommand
}

// GPUs are those of this node.
func (c Config) GPUs(ctx context.Context) ([]nodeinfo.GPU, error) {
	return c.nodePlace().GPUs(ctx, c.refresher())
}

// refreshTimeout bounds the time that the command tranche takes to ask NVML, which never answers where the driver hangs.
// It is less than editTimeout, so that whoever waits for the container is told what did not answer.
var refreshTimeout = editTimeout - 10*time.Second

// refreshWaitDelay is how long the command's standard error is waited for once the command is gone: something that it has
// left behind may hold it open.
const refreshWaitDelay = 250 * time.Millisecond

// refreshByCommand has the command tranche ask NVML, since whoever edits specs as an OCI runtime is linked statically.
func (c Config) refreshByCommand(ctx context.Context, place nodeinfo.Place) error {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.CLIPath, "node-info", "refresh", "--driver-root", place.DriverRoot,
		"--run-dir", place.RunDir, "--state-dir", c.StateDir, "--hook", place.CLIPath)
	// Not our own environment: a container engine may have let a job fill it.
	cmd.Env = []string{}
	var stderr bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &stderr, refreshWaitDelay
	// It may be a script. What that has started ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("run %s node-info refresh: it did not end in time: %w; see whether the driver answers at all "+
			"(nvidia-smi)", c.CLIPath, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("run %s node-info refresh: %w: %s; install the command tranche there, or set cli_path to where "+
			"it is", c.CLIPath, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// generatedEdits are the CDI edits for the GPUs of the grants in the CDI spec that is generated from the driver root.
func generatedEdits(ctx context.Context, cfg Config, grants []Grant) (*cdi.ContainerEdits, error) {
	uuids := gpuUUIDs(grants)
	spec, err := cfg.nodePlace().Spec(ctx, cfg.refresher(), uuids, instancesCheck(grants, procDriver))
	if err != nil {
		return nil, err
	}
	merged := &cdi.ContainerEdits{ContainerEdits: &spec.ContainerEdits}
	for i := range spec.Devices {
		if slices.Contains(uuids, spec.Devices[i].Name) {
			merged.Append(&cdi.ContainerEdits{ContainerEdits: &spec.Devices[i].ContainerEdits})
		}
	}
	return merged, nil
}

func gpuUUIDs(grants []Grant) []string {
	var uuids []string
	for _, grant := range grants {
		uuids = append(uuids, grant.Claim.GPU.UUID)
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}
