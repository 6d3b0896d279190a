package wrapper_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// A claim on a MIG instance gets the node of its GPU and those of its own capabilities, and the limit holds. So it is by
// the node's CDI spec as by a generated one.
func TestContainer_MIG(t *testing.T) {
	cases := []struct {
		name  string
		claim string
		nodes string
	}{
		{"the larger", migBig, "nvidia-caps/nvidia-cap12 nvidia-caps/nvidia-cap13 nvidia-uvm nvidia0 nvidiactl"},
		{"the smaller", migSmall, "nvidia-caps/nvidia-cap84 nvidia-caps/nvidia-cap85 nvidia-uvm nvidia0 nvidiactl"},
		{"a whole GPU beside it", h200Second, "nvidia-uvm nvidia1 nvidiactl"},
	}
	for _, tc := range cases {
		for _, source := range []string{"the node's CDI spec", "a generated CDI spec"} {
			t.Run(tc.name+" by "+source, func(t *testing.T) {
				n := newNVIDIANode(t, "runc", "h200-mig.conf")
				_, env := n.claimOn(tc.claim)
				bundle := n.probe("b", env)
				if source == "a generated CDI spec" {
					must.NoError(t, os.RemoveAll(filepath.Join(n.cfg.DriverRoot, "etc/cdi")))
					n.simulated(bundle)
				}
				must.Eq(t, tc.nodes, n.fills("c1", bundle))
				must.Eq(t, map[string]uint64{tc.claim: limitOf}, n.peaks())
			})
		}
	}
}

// The instances of a GPU that answers are there while another GPU does not answer.
func TestContainer_MIG_BesideALostGPU(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200-mig.conf")
	must.NoError(t, os.RemoveAll(filepath.Join(n.cfg.DriverRoot, "etc/cdi")))
	fault := exec.Command(n.built("sim/bin/simgpu"), "fault", "lost", "1", "on")
	fault.Env = n.simEnv()
	out, err := fault.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	_, env := n.claimOn(migSmall)
	const nodes = "nvidia-caps/nvidia-cap84 nvidia-caps/nvidia-cap85 nvidia-uvm nvidia0 nvidiactl"
	must.Eq(t, nodes, n.fills("c1", n.simulated(n.probe("b", env))))
	must.Eq(t, map[string]uint64{migSmall: limitOf}, n.peaks())
}

// A container requests a part of an instance that somebody has made, on a node without the device plugin.
func TestContainer_MIG_Request(t *testing.T) {
	for _, gpu := range []string{"uuid:" + migSmall, "model:*MIG 1g*"} {
		n := newNVIDIANode(t, "runc", "h200-mig.conf")
		const nodes = "nvidia-caps/nvidia-cap84 nvidia-caps/nvidia-cap85 nvidia-uvm nvidia0 nvidiactl"
		bundle := n.probe("b", "TRANCHE_GPU_MEMORY=1GiB", "TRANCHE_GPU="+gpu)
		must.Eq(t, nodes, n.fills("c1", bundle), must.Sprint(gpu))
		must.Eq(t, map[string]uint64{migSmall: 1 << 30}, n.peaks())
	}
}

// Two claims on instances of one GPU in one container: the GPU's node once, and each instance's own.
func TestContainer_TwoMIGInstances(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200-mig.conf")
	_, first := n.claimOn(migBig)
	_, second := n.claimOn(migSmall)
	const nodes = "nvidia-caps/nvidia-cap12 nvidia-caps/nvidia-cap13 nvidia-caps/nvidia-cap84 nvidia-caps/nvidia-cap85 " +
		"nvidia-uvm nvidia0 nvidiactl"
	must.Eq(t, nodes, n.fills("c1", n.probe("b", first, second, "CUDA_VISIBLE_DEVICES="+migSmall)))
	must.Eq(t, map[string]uint64{migSmall: limitOf}, n.peaks())
}

// A CDI spec of before the GPUs were numbered again would bring somebody else's GPU.
func TestContainer_CDISpecOfOtherNumbers(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200x2.conf")
	proc := filepath.Join(n.cfg.DriverRoot, "proc/driver/nvidia/gpus")
	for pci, gpu := range map[string][2]string{"0000:19:00.0": {h200Second, "0"}, "0000:3b:00.0": {h200First, "1"}} {
		runtimetest.WriteFile(t, filepath.Join(proc, pci, "information"),
			"GPU UUID: \t "+gpu[0]+"\nDevice Minor: \t "+gpu[1]+"\n")
	}
	_, env := n.claimOn(h200Second)
	// NVML, which is asked instead, still numbers them as before, so that one sees who was asked.
	must.Eq(t, "nvidia-uvm nvidia1 nvidiactl", n.fills("c1", n.simulated(n.probe("b", env))))
	_, err := os.Stat(filepath.Join(n.cfg.RunDir, "node"))
	must.NoError(t, err, must.Sprint("no CDI spec was generated"))
	must.StrContains(t, n.output("c1"), "tranche-runtime: CDI spec of the node not used (reason: the CDI spec "+
		filepath.Join(n.cfg.DriverRoot, "etc/cdi"))
	must.StrContains(t, n.output("c1"), "and the GPU has minor number 0 now; write it again with nvidia-ctk cdi generate)\n")
}
