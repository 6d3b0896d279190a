package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

const installDriver = "install NVIDIA's driver, or set driver_root to where it is"

var driverChecks = []check{
	{"driver", "library", driverLibrary},
	{"driver", "kernel module", driverModule},
	{"driver", "NVML", driverNVML},
	{"driver", "device nodes", driverNodes},
	{"driver", "memory of malloc", driverPageable},
	{"driver", "memory limits", driverLimits},
	{"driver", "Xid errors", driverEvents},
}

// driverLibrary finds libcuda, without which there is nothing to hold to a limit.
func driverLibrary(_ context.Context, n *Node) finding {
	found, err := driverroot.FindLibrary(n.Config.DriverRoot, driverroot.CUDALibrary)
	if err != nil {
		return fault(n.Config.DriverRoot, err.Error(), installDriver)
	}
	return ok(n.Config.DriverRoot, "%s", found)
}

// driverModule compares the kernel module with the libraries: after an update without a reboot they differ, and the
// driver refuses every call.
func driverModule(_ context.Context, n *Node) finding {
	file := n.path("/proc/driver/nvidia/version")
	text, err := os.ReadFile(file)
	if err != nil {
		return warning(file, "absent", "load the kernel module, unless NVML answers without: modprobe nvidia nvidia-uvm")
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if v := n.gpus.DriverVersion; v != "" && !strings.Contains(line, " "+v+" ") {
		return fault(file, fmt.Sprintf("%s, but the libraries are %s", line, v), "the driver was updated under the module "+
			"that runs: reboot, or unload and load nvidia, nvidia-uvm and nvidia-modeset")
	}
	return ok(file, "%s", line)
}

// driverLimits tries what enforces limits of memory.
func driverLimits(ctx context.Context, n *Node) finding {
	const looked = "nvmlDeviceSetMemoryLimits_v1"
	if n.gpusErr != nil {
		return ok(looked, "NVML names no GPUs to try")
	}
	for _, g := range n.gpus.GPUs {
		err := n.ProbeLimits(ctx, g.UUID)
		switch {
		case err == nil:
		case n.Config.Enforcement == claim.EnforcementDriver:
			return fault(looked, fmt.Sprintf("enforcement = %q, but the driver cannot limit memory on GPU %d: %v",
				n.Config.Enforcement, g.Index, err), "see docs/enforcement.md for what the driver needs, or set enforcement = \"auto\"")
		default:
			return ok(looked, "the shadow library enforces limits: the driver cannot on GPU %d: %v", g.Index, err)
		}
	}
	return ok(looked, "the driver enforces limits unless enforcement says otherwise")
}

func driverNVML(_ context.Context, n *Node) finding {
	looked := driverroot.NVMLLibrary + " in " + n.Config.DriverRoot
	if n.gpusErr != nil {
		return fault(looked, n.gpusErr.Error(), "see that nvidia-smi works on this node; "+installDriver)
	}
	if len(n.gpus.Failed) > 0 {
		f := n.gpus.Failed[0]
		return fault(looked, fmt.Sprintf("GPU %d does not answer: %v", f.Index, f.Err), "see dmesg for Xid errors; a GPU that "+
			"fell off the bus needs a reset (nvidia-smi --gpu-reset) or a reboot")
	}
	if len(n.gpus.GPUs) == 0 {
		return fault(looked, "no GPUs", "see that lspci lists them and nvidia-smi does, too")
	}
	return ok(looked, "driver %s, CUDA %s, %d GPUs", n.gpus.DriverVersion, n.gpus.CUDAVersion, len(n.gpus.GPUs))
}

// driverNodes looks for what containers open. The driver makes some of them only when somebody first asks.
func driverNodes(_ context.Context, n *Node) finding {
	dev := filepath.Join(n.Config.DriverRoot, "dev")
	names := []string{"nvidiactl", "nvidia-uvm"}
	for _, g := range n.gpus.GPUs {
		names = append(names, fmt.Sprintf("nvidia%d", g.Minor))
	}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dev, name))
		if err != nil || info.Mode()&os.ModeCharDevice == 0 {
			return fault(dev, name+" is no device node there", "have the driver make them: nvidia-modprobe -u -c 0, at each boot; "+
				"nvidia-persistenced does so, too")
		}
	}
	return ok(dev, "%s", strings.Join(names, ", "))
}

// driverEvents looks whether the device plugin receives the errors that GPUs report, as it publishes it.
func driverEvents(_ context.Context, n *Node) finding {
	looked := filepath.Join(n.Config.RunDir, health.FileName)
	report, err := health.Read(n.Config.RunDir)
	if err != nil {
		return warning(looked, err.Error(), "do as it says")
	}
	if e := report.Events; e != nil {
		return warning(looked, fmt.Sprintf("the device plugin misses Xid errors since %s: %s", e.Since.UTC().Format(time.RFC3339), e.Problem),
			"the plugin tries again; if it lasts, restart the Nomad agent, and see dmesg for Xid errors meanwhile")
	}
	return ok(looked, "the device plugin misses none that it knows of")
}
