package doctor

import (
	"context"
	"os"
	"strings"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// How to have the kernel's module not use memory of malloc on the GPU. Both parameters are read when it is loaded.
const (
	disableHMM = "options nvidia_uvm uvm_disable_hmm=1"
	disableATS = "options nvidia_uvm uvm_ats_mode=0"
)

// driverPageable finds nodes whose GPUs use all memory of a program (HMM, ATS): that of malloc then moves to the GPU and
// counts toward no limit. Newer drivers say which GPUs do. With older ones HMM is possible with the open kernel modules,
// unless their parameter turns it off; it is off in those of before 535 and where the processor is not an x86-64.
func driverPageable(_ context.Context, n *Node) finding {
	const looked = "addressing mode in NVML"
	said := len(n.gpus.GPUs) > 0
	for _, gpu := range n.gpus.GPUs {
		switch {
		case gpu.Addressing == nil:
			said = false
		case *gpu.Addressing == nvml.AddressingHMM:
			return uncountedMalloc(looked, "GPU "+gpu.UUID+" uses memory of malloc (HMM)", disableHMM)
		case *gpu.Addressing == nvml.AddressingATS:
			return uncountedMalloc(looked, "GPU "+gpu.UUID+" uses memory of malloc (ATS)", disableATS)
		}
	}
	if said {
		return ok(looked, "no GPU uses memory of malloc")
	}
	file := n.path("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
	text, err := os.ReadFile(file)
	version, versionErr := os.ReadFile(n.path("/proc/driver/nvidia/version"))
	open := versionErr == nil && strings.Contains(string(version), "Open Kernel Module")
	if err == nil && open && strings.TrimSpace(string(text)) == "N" {
		return uncountedMalloc(file, "N: the GPUs may use memory of malloc (HMM), if this kernel supports it", disableHMM)
	}
	return ok(file, "no GPU uses memory of malloc by HMM")
}

func uncountedMalloc(looked, found, option string) finding {
	return warning(looked, found, "such memory counts toward no limit; to turn it off, write \""+option+
		"\" into a file in /etc/modprobe.d and load nvidia_uvm again, or reboot")
}
