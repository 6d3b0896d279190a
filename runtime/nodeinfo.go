package runtime

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"tranche.dev/tranche/runtime/nodeinfo"
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

// refreshByCommand has the command tranche ask NVML, since whoever edits specs as an OCI runtime is linked statically.
func (c Config) refreshByCommand(ctx context.Context, place nodeinfo.Place) error {
	cmd := exec.CommandContext(ctx, c.CLIPath, "node-info", "refresh", "--driver-root", place.DriverRoot,
		"--run-dir", place.RunDir, "--state-dir", c.StateDir, "--hook", place.CLIPath)
	// Not our own environment: a container engine may have let a job fill it.
	cmd.Env = []string{}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
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
