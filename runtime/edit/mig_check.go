package edit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/claim"
)

// The driver may give a MIG instance the UUID of one that was destroyed. A CDI spec that was written in between then has the
// device with the capabilities of another instance.

// checkInstance returns an error if a CDI device lacks the capabilities of a claim's MIG instance. proc is procDriver. If
// the kernel module does not publish them, it returns nil.
func checkInstance(nodes []*cdispecs.DeviceNode, mig *claim.MIG, proc string) error {
	if mig == nil {
		return nil
	}
	minors, err := os.ReadFile(filepath.Join(filepath.Dir(proc), "nvidia-caps", "mig-minors"))
	if err != nil {
		return nil //nolint:nilerr // the module is not loaded, or the file is not readable
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
			return fmt.Errorf("it is of an earlier MIG instance with the same UUID: it lacks %s, which is %s", wanted, capability)
		}
	}
	return nil
}

// minorOf returns the minor number of a GPU, or "" if the kernel module does not publish it.
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

// capabilityMinor returns the minor number of a capability in the kernel module's list of lines like "gpu0/gi1/access 12".
func capabilityMinor(minors, capability string) string {
	for line := range strings.Lines(minors) {
		if minor, ok := strings.CutPrefix(line, capability+" "); ok {
			return strings.TrimSpace(minor)
		}
	}
	return ""
}

// instancesCheck returns a check of a device of the cached CDI spec against the claim on it.
func instancesCheck(claims []Claim, proc string) func(*cdispecs.Device) error {
	return func(device *cdispecs.Device) error {
		for _, c := range claims {
			if c.GPU.UUID != device.Name {
				continue
			}
			if err := checkInstance(device.ContainerEdits.DeviceNodes, c.MIG, proc); err != nil {
				return fmt.Errorf("the cached CDI device %s is out of date: %w", device.Name, err)
			}
		}
		return nil
	}
}
