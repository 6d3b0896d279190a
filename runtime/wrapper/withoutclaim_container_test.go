package wrapper_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// askingBundle is a container that asks for a GPU as images of CUDA do, and by a device and a hook besides.
func (n *node) askingBundle(name string, env ...string) string {
	n.t.Helper()
	script := "echo devices: $(busybox ls /dev | busybox grep nvidia); busybox env | busybox grep NVIDIA || true"
	bundle := n.image(n.bundle(name, script, env...))
	file := filepath.Join(bundle, "config.json")
	var spec map[string]any
	must.NoError(n.t, json.Unmarshal([]byte(readFile(n.t, file)), &spec))
	hook := n.path("nvidia-container-runtime-hook")
	runtimetest.WriteFile(n.t, hook, "#!/bin/sh\ncat >/dev/null; echo called >>"+n.path("called")+"\n")
	spec["hooks"] = map[string]any{"prestart": []any{map[string]any{"path": hook}}}
	linux := spec["linux"].(map[string]any)
	linux["devices"] = []any{map[string]any{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3, "fileMode": 438}}
	content, err := json.Marshal(spec)
	must.NoError(n.t, err)
	runtimetest.WriteFile(n.t, file, string(content))
	return bundle
}

func TestContainer_WithoutClaim(t *testing.T) {
	for _, next := range nextRuntimes {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			runtimetest.WriteFile(t, n.path("called"), "")
			set := func(policy string) {
				n.withoutClaim = policy
				n.configure(next)
			}
			const asks = "NVIDIA_VISIBLE_DEVICES=all"

			denied := n.askingBundle("denied", asks)
			stderr := n.fails(n.oci("run", "--bundle", denied, "c1"))
			for _, want := range []string{
				`NVIDIA_VISIBLE_DEVICES="all"`, `the device "/dev/nvidia0"`, "nvidia-container-runtime-hook", "no claim",
				"-e NVIDIA_VISIBLE_DEVICES=void", "TRANCHE_GPU_MEMORY", `without_claim = "void" or "pass"`,
			} {
				must.StrContains(t, stderr, want)
			}
			must.Error(t, n.oci("state", "c1").Run())
			must.Eq(t, "", readFile(t, n.path("called")))

			set("void")
			output := n.must(n.oci("run", "--bundle", denied, "c2"))
			must.Eq(t, "devices:\nNVIDIA_VISIBLE_DEVICES=void\n", output)
			must.Eq(t, "", readFile(t, n.path("called")))

			set("pass")
			passed := n.askingBundle("passed", asks)
			before := readFile(t, filepath.Join(passed, "config.json"))
			output = n.must(n.oci("run", "--bundle", passed, "c3"))
			must.Eq(t, "devices: nvidia0\nNVIDIA_VISIBLE_DEVICES=all\n", output)
			must.Eq(t, "called\n", readFile(t, n.path("called")))
			must.Eq(t, before, readFile(t, filepath.Join(passed, "config.json")))
		})
	}
}

// An image that sets the variable itself starts without a GPU if whoever starts it says so; one with a claim is no
// matter of this policy.
func TestContainer_WithoutClaim_NotRequesting(t *testing.T) {
	n := newContainerNode(t, "runc")
	script := "busybox env | busybox grep NVIDIA; busybox echo /dev/nvidia*"
	void := n.image(n.bundle("void", script, "NVIDIA_VISIBLE_DEVICES=void"))
	must.Eq(t, "NVIDIA_VISIBLE_DEVICES=void\n/dev/nvidia*\n", n.must(n.oci("run", "--bundle", void, "c1")))
	_, env := n.reserve(runtimetest.GPU0, "slice-000")
	held := n.image(n.bundle("held", script, env, "NVIDIA_VISIBLE_DEVICES=all"))
	output := n.must(n.oci("run", "--bundle", held, "c2"))
	must.True(t, strings.HasPrefix(output, "NVIDIA_VISIBLE_DEVICES=void\n/dev/nvidia0"), must.Sprint(output))
}

// A privileged container has every node of the host's /dev, and those of GPUs because the node has some. It starts as it is.
func TestContainer_WithoutClaim_Privileged(t *testing.T) {
	for _, next := range nextRuntimes {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			bundle := n.askingBundle("b")
			file := filepath.Join(bundle, "config.json")
			var spec map[string]any
			must.NoError(t, json.Unmarshal([]byte(readFile(t, file)), &spec))
			delete(spec, "hooks")
			spec["linux"].(map[string]any)["resources"] = map[string]any{
				"devices": []any{map[string]any{"allow": true, "access": "rwm"}},
			}
			content, err := json.Marshal(spec)
			must.NoError(t, err)
			runtimetest.WriteFile(t, file, string(content))
			for _, policy := range []string{runtime.WithoutClaimDeny, runtime.WithoutClaimVoid} {
				n.withoutClaim = policy
				n.configure(next)
				must.Eq(t, "devices: nvidia0\n", n.must(n.oci("run", "--bundle", bundle, "c-"+policy)))
				must.Eq(t, string(content), readFile(t, file))
			}
		})
	}
}
