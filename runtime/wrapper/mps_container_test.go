package wrapper_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// mpsNode is a node whose first GPU is behind a simulated MPS control daemon.
type mpsNode struct {
	*nvidiaNode
	daemons *mps.Manager
}

func newMPSNode(t *testing.T, next string) *mpsNode {
	t.Helper()
	n := newNVIDIANode(t, next, "h200x2.conf")
	// The names of sockets have to be short.
	runDir, err := os.MkdirTemp("", "run")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(runDir) })
	claimtest.RemoveRegions(t, runDir)
	n.cfg.RunDir = runDir
	n.ledger, err = claim.Open(claim.Options{StateDir: n.cfg.StateDir, RunDir: runDir})
	must.NoError(t, err)
	n.configure(next)

	for _, setting := range n.simEnv() {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	gpus := nvml.New(n.cfg.DriverRoot)
	_, err = gpus.Read(t.Context())
	must.NoError(t, err)
	daemons := mps.New(mps.Options{DriverRoot: n.cfg.DriverRoot, RunDir: runDir, GPUs: gpus})
	t.Cleanup(func() {
		must.NoError(t, daemons.Stop(context.Background(), h200First))
		must.NoError(t, daemons.Release(context.Background(), h200First))
		must.NoError(t, gpus.Close(context.Background()))
	})
	must.NoError(t, daemons.Ensure(t.Context(), h200First))
	return &mpsNode{nvidiaNode: n, daemons: daemons}
}

// client is a bundle of a container that runs a script behind the daemon, with a slice's limit and 12 % of the GPU.
func (n *mpsNode) client(name string, slice int, script string) string {
	n.t.Helper()
	_, env := n.claimIn(h200First, claim.ModeMPS, func(r *claim.Request) {
		r.Slices, r.LimitBytes = []string{claim.SliceName(h200First, slice)}, limitOf
		r.MPS = &claim.MPS{Percentage: 12}
	})
	bundle := n.probe(name, env)
	n.edit(bundle, func(spec map[string]any) {
		args := spec["process"].(map[string]any)["args"].([]any)
		args[len(args)-1] = script
	})
	return bundle
}

// runs starts a container and waits until it says something.
func (n *mpsNode) runs(id, bundle, until string) string {
	n.t.Helper()
	must.NoError(n.t, n.create(id, bundle), must.Func(func() string { return n.output(id) }))
	n.must(n.oci("start", id))
	n.waitFor(id+" says "+until, func() bool { return strings.Contains(n.output(id), until) || n.status(id) == "stopped" })
	must.StrContains(n.t, n.output(id), until)
	return n.output(id)
}

// What 12 % of an H200's 132 multiprocessors are to a program.
const portion = `"multiprocessors":14,`

// The shadow and MPS each hold a container to its memory, where the other does not or cannot.
func TestContainer_BehindMPS(t *testing.T) {
	cases := map[string]string{
		"both":       `exec /bin/gpu-probe fill`,
		"the shadow": `unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; exec /bin/gpu-probe fill`,
		// MPS allows each process of a claim as much as the claim.
		"the shadow, of two processes": `/bin/gpu-probe fill & /bin/gpu-probe fill; wait`,
		"MPS": `busybox mkdir /own; busybox ln -s ` + runtimetest.LibDir + `/.tranche/driver-libcuda.so /own/libcuda.so.1
LD_LIBRARY_PATH=/own exec /bin/gpu-probe fill`,
	}
	for name, script := range cases {
		for _, next := range []string{"runc", "crun"} {
			if next == "crun" && name != "both" {
				continue // the limits are the same
			}
			t.Run(name+" by "+next, func(t *testing.T) {
				n := newMPSNode(t, next)
				must.StrContains(t, n.runs("c1", n.client("b", 0, script), `"computing"`), portion)
				n.waitFor("all that the container gets is taken", func() bool {
					said := n.output("c1")
					return strings.Count(said, `"full"`)+strings.Count(said, `"error"`) == strings.Count(script, "fill")
				})
				peaks := n.peaks()
				must.MapLen(t, 1, peaks)
				must.LessEq(t, uint64(limitOf), peaks[h200First])
				must.Greater(t, uint64(limitOf*6/10), peaks[h200First])
			})
		}
	}
}

// Containers of two users compute at the same time, and find nothing by which they could have more than clients have.
func TestContainer_TwoBehindMPS(t *testing.T) {
	n := newMPSNode(t, "runc")
	const look = `busybox ls /tmp/nvidia-mps
for name in control control_privileged control_lock nvidia-cuda-mps-control.pid; do
	busybox rm -f /tmp/nvidia-mps/$name 2>/dev/null; busybox touch /tmp/nvidia-mps/$name 2>/dev/null
	busybox mv /dev/null /tmp/nvidia-mps/$name 2>/dev/null && echo "replaced $name"
done
busybox ls /tmp/nvidia-mps; exec /bin/gpu-probe fill`
	root, user := n.client("b1", 0, look), n.client("b2", 1, look)
	n.edit(user, func(spec map[string]any) {
		spec["process"].(map[string]any)["user"] = map[string]any{"uid": 1000, "gid": 1000}
	})
	for id, bundle := range map[string]string{"c1": root, "c2": user} {
		output := n.runs(id, bundle, `"computing"`)
		must.StrHasPrefix(t, "control\ncontrol_lock\nlog\ncontrol\ncontrol_lock\nlog\n{", strings.TrimPrefix(output, lacksGlibc+"\n"))
		must.StrContains(t, output, portion)
	}
	for _, id := range []string{"c1", "c2"} {
		must.Eq(t, "running", n.status(id))
	}
	clients, err := n.daemons.Clients(t.Context(), h200First)
	must.NoError(t, err)
	must.Len(t, 2, clients)
	must.LessEq(t, uint64(2*limitOf), n.peaks()[h200First])
}
