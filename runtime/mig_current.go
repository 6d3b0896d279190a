package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/claim"
)

// The driver may give an instance by MIG the UUID of an earlier one that was destroyed, so that a CDI spec which was made in
// between names the right device and brings the capabilities of another: of nobody's, or of somebody else's instance.

// checkInstance makes sure that a CDI device brings the capabilities of a claim's instance. proc is procDriver. Where the
// kernel module does not say which those are, it is taken for right.
func checkInstance(nodes []*cdispecs.DeviceNode, mig *claim.MIG, proc string) error {
	if mig == nil {
		return nil
	}
	minors, err := os.ReadFile(filepath.Join(filepath.Dir(proc), "nvidia-caps", "mig-minors"))
	if err != nil {
		return nil //nolint:nilerr // the module is not loaded, or lets nobody read it
	}
	gpu := minorOf(mig.GPUUUID, proc)
	instance := fmt.Sprintf("gpu%s/gi%d/", gpu, mig.GPUInstance)
	for _, capability := range []string{instance + "access", fmt.Sprintf("%sci%d/access", instance, mig.ComputeInstance)} {
		minor := capabilityMinor(string(minors), capability)
		if gpu == "" || minor == "" {
			continue
		}
		wanted := "/dev/nvidia-caps/nvidia-cap" + minor
		if !slices.ContainsFunc(nodes, func(n *cdispecs.DeviceNode) bool { return n.Path == wanted }) {
			return fmt.Errorf("it is of an earlier instance with the same UUID: it does not bring %s, which is %s", wanted, capability)
		}
	}
	return nil
}

// minorOf is the minor number of a GPU, or "" where the kernel module does not say.
func minorOf(uuid, proc string) string {
	files, _ := filepath.Glob(filepath.Join(proc, "gpus/*/information")) // the pattern is a good one
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && information(string(content), "GPU UUID") == uuid {
			return information(string(content), "Device Minor")
		}
	}
	return ""
}

// capabilityMinor finds the node of a capability in the kernel module's list: lines like "gpu0/gi1/access 12".
func capabilityMinor(minors, capability string) string {
	for line := range strings.Lines(minors) {
		if minor, ok := strings.CutPrefix(line, capability+" "); ok {
			return strings.TrimSpace(minor)
		}
	}
	return ""
}

// instancesCheck checks a device of the kept CDI specification against the claim on it.
func instancesCheck(grants []Grant, proc string) func(*cdispecs.Device) error {
	return func(device *cdispecs.Device) error {
		for _, grant := range grants {
			if grant.Claim.GPU.UUID != device.Name {
				continue
			}
			if err := checkInstance(device.ContainerEdits.DeviceNodes, grant.Claim.MIG, proc); err != nil {
				return fmt.Errorf("what is kept of %s is wrong: %w", device.Name, err)
			}
		}
		return nil
	}
}
