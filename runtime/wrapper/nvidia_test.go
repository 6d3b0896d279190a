package wrapper_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// The GPU's nodes that a container with a claim on the first H200 gets, and those of one that gets all GPUs.
const (
	nodesOfFirst = "nvidia-uvm nvidia0 nvidiactl"
	nodesOfAll   = "nvidia-uvm nvidia0 nvidia1 nvidiactl"
)

// nvidia installs NVIDIA's container runtime, hook and CDI hook, which are the real ones; the nvidia-container-cli that
// the hook calls is simulated. The runtime is in the mode and becomes the low-level runtime.
func (n *nvidiaNode) nvidia(mode, lowLevel string, swarm ...string) {
	n.t.Helper()
	settings := map[string]any{
		"accept-nvidia-visible-devices-as-volume-mounts": true,
		"nvidia-container-cli": map[string]any{
			"root": n.cfg.DriverRoot, "path": n.built("e2e/nvidia-container-cli"), "load-kmods": false,
		},
		"nvidia-container-runtime": map[string]any{
			"runtimes": []string{lowLevel}, "mode": mode, "log-level": "error",
			"modes": map[string]any{"cdi": map[string]any{"spec-dirs": []string{filepath.Join(n.cfg.DriverRoot, "etc/cdi")}}},
		},
		"nvidia-container-runtime-hook": map[string]any{
			"path": n.built("tools/nvidia-container-runtime-hook"), "skip-mode-detection": true,
		},
		"nvidia-ctk": map[string]any{"path": n.built("tools/nvidia-cdi-hook")},
	}
	if len(swarm) > 0 {
		settings["swarm-resource"] = swarm[0]
	}
	content, err := toml.Marshal(settings)
	must.NoError(n.t, err)
	file := n.path("nvidia.toml")
	must.NoError(n.t, os.WriteFile(file, content, 0o644))
	n.t.Setenv("NVIDIA_CTK_CONFIG_FILE_PATH", file)
	for _, setting := range n.simEnv() { // jit-cdi asks NVML
		name, value, _ := strings.Cut(setting, "=")
		n.t.Setenv(name, value)
	}
}

// orders are the ways in which Tranche's runtime and NVIDIA's can follow each other.
var orders = []struct {
	name string
	// set makes it so, with NVIDIA's runtime in a mode.
	set func(n *nvidiaNode, mode string)
}{
	{"tranche-runtime becomes nvidia-container-runtime", func(n *nvidiaNode, mode string) {
		n.configure(n.built("tools/nvidia-container-runtime"))
		n.nvidia(mode, "runc")
	}},
	{"nvidia-container-runtime becomes tranche-runtime", func(n *nvidiaNode, mode string) {
		n.front = n.built("tools/nvidia-container-runtime")
		n.nvidia(mode, n.path("tranche-runtime"))
	}},
}

var nvidiaModes = []string{"legacy", "cdi", "jit-cdi"}

// Without Tranche, NVIDIA's tools give a container all GPUs that its environment asks for, and nothing limits it: what
// the tests below guard against happens here.
func TestNVIDIA_WithoutTranche(t *testing.T) {
	for _, mode := range nvidiaModes {
		t.Run(mode, func(t *testing.T) {
			n := newNVIDIANode(t, "runc", "h200x2.conf")
			n.front = n.built("tools/nvidia-container-runtime")
			n.nvidia(mode, "runc")
			bundle := n.simulated(n.probe("b", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"))
			nodes := n.fills("c1", bundle)
			must.StrContains(t, nodes, nodesOfAll)
			for gpu, peak := range n.peaks() {
				must.Greater(t, 100<<30, peak, must.Sprint(gpu))
			}
			must.MapLen(t, 2, n.peaks())
		})
	}
}

// Beside NVIDIA's runtime in each of its modes, before it and behind it, a container with a claim gets its GPU and its
// limit: where Nomad says void, and where the image or the engine asks for everything.
func TestNVIDIA_Runtime(t *testing.T) {
	for _, order := range orders {
		for _, mode := range nvidiaModes {
			for _, visible := range []string{"void", "all"} {
				t.Run(order.name+" in mode "+mode+", visible "+visible, func(t *testing.T) {
					n := newNVIDIANode(t, "runc", "h200x2.conf")
					order.set(n, mode)
					_, env := n.claimOn(h200First)
					bundle := n.probe("b", env, "NVIDIA_VISIBLE_DEVICES="+visible, "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
					must.Eq(t, nodesOfFirst, n.fills("c1", bundle))
					must.Eq(t, map[string]uint64{h200First: limitOf}, n.peaks())
				})
			}
		}
	}
}

// All the ways in which NVIDIA's tools can be asked for GPUs beside the usual variable.
func TestNVIDIA_Requests(t *testing.T) {
	requests := []struct {
		name, mode string
		add        func(n *nvidiaNode, spec map[string]any)
	}{
		{"an annotation", "cdi", func(_ *nvidiaNode, spec map[string]any) {
			spec["annotations"] = map[string]string{"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}
		}},
		{"a mount", "cdi", func(_ *nvidiaNode, spec map[string]any) {
			spec["mounts"] = append(spec["mounts"].([]any), map[string]any{
				"destination": "/var/run/nvidia-container-devices/all", "type": "bind", "source": "/dev/null",
				"options": []string{"bind"},
			})
		}},
		{"the legacy hook", "legacy", func(n *nvidiaNode, spec map[string]any) {
			spec["hooks"] = map[string]any{"prestart": []any{map[string]any{
				"path": n.built("tools/nvidia-container-runtime-hook"),
				"args": []string{"nvidia-container-runtime-hook", "prestart"},
			}}}
		}},
		{"the legacy hook in a script", "legacy", func(n *nvidiaNode, spec map[string]any) {
			script := n.path("oci-nvidia-hook")
			must.NoError(n.t, os.WriteFile(script,
				[]byte("#!/bin/sh\nexec "+n.built("tools/nvidia-container-runtime-hook")+" prestart\n"), 0o755))
			spec["hooks"] = map[string]any{"prestart": []any{map[string]any{"path": script, "args": []string{script}}}}
		}},
	}
	for _, request := range requests {
		for _, order := range orders {
			t.Run(request.name+", "+order.name, func(t *testing.T) {
				n := newNVIDIANode(t, "runc", "h200x2.conf")
				order.set(n, request.mode)
				_, env := n.claimOn(h200First)
				bundle := n.probe("b", env, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
				n.edit(bundle, func(spec map[string]any) { request.add(n, spec) })
				must.Eq(t, nodesOfFirst, n.fills("c1", bundle))
				must.Eq(t, map[string]uint64{h200First: limitOf}, n.peaks())
			})
		}
	}
}

// A hook directory of podman's or CRI-O's puts NVIDIA's hook into the spec, and so does docker --gpus; no runtime of
// NVIDIA's is there.
func TestNVIDIA_LegacyHookAlone(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200x2.conf")
	n.nvidia("legacy", "runc")
	hook := func(spec map[string]any) {
		spec["hooks"] = map[string]any{"prestart": []any{map[string]any{
			"path": n.built("tools/nvidia-container-runtime-hook"),
			"args": []string{"nvidia-container-runtime-hook", "prestart"},
		}}}
	}
	_, env := n.claimOn(h200First)
	bundle := n.probe("b", env, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	n.edit(bundle, hook)
	must.Eq(t, nodesOfFirst, n.fills("c1", bundle))
	must.Eq(t, map[string]uint64{h200First: limitOf}, n.peaks())

	// The same bundle without Tranche: the hook does give everything.
	n.front, _ = exec.LookPath("runc")
	bundle = n.probe("b2", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
	n.edit(bundle, hook)
	must.StrContains(t, n.fills("c2", bundle), nodesOfAll)
}

// A configuration of NVIDIA's that asks for GPUs by a variable of its own choice gets past all that the spec can say. Who
// is given more than the claim does not start; who is given the same GPU once more has the shadow in front of what
// NVIDIA's hook mounted.
func TestNVIDIA_RequestedByAnotherVariable(t *testing.T) {
	for _, by := range []struct{ mode, lowLevel string }{{"legacy", "runc"}, {"cdi", "runc"}, {"legacy", "crun"}, {"cdi", "crun"}} {
		t.Run("all GPUs, in mode "+by.mode+" with "+by.lowLevel, func(t *testing.T) {
			n := newNVIDIANode(t, by.lowLevel, "h200x2.conf")
			n.configure(n.built("tools/nvidia-container-runtime"))
			n.nvidia(by.mode, by.lowLevel, "SITE_GPUS")
			made, env := n.claimOn(h200First)
			bundle := n.probe("b", env, "SITE_GPUS=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
			must.Error(t, n.create("c1", bundle))
			says := []string{"/dev/nvidia1", "claim does not include", "swarm-resource"}
			if by.lowLevel == "crun" { // which names the hook, and hands on nothing of what it says
				says = []string{"tranche-hook"}
			}
			for _, named := range says {
				must.StrContains(t, n.output("c1"), named)
			}
			// crun runs no poststop hook for a container that it could not make; the sweep releases its claim.
			if holder := n.holder(made.ID); holder != nil {
				must.Eq(t, "crun", by.lowLevel)
				n.waitFor("the container's process is gone", func() bool { return !claim.Alive(*holder) })
			}
			must.MapEmpty(t, n.peaks())
		})
		t.Run("the claim's GPU, in mode "+by.mode+" with "+by.lowLevel, func(t *testing.T) {
			n := newNVIDIANode(t, by.lowLevel, "h200x2.conf")
			n.configure(n.built("tools/nvidia-container-runtime"))
			n.nvidia(by.mode, by.lowLevel, "SITE_GPUS")
			_, env := n.claimOn(h200First)
			bundle := n.probe("b", env, "SITE_GPUS="+h200First, "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
			must.Eq(t, nodesOfFirst, n.fills("c1", bundle))
			must.Eq(t, map[string]uint64{h200First: limitOf}, n.peaks())
		})
	}
}
