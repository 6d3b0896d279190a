package wrapper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/mpsdir"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// wholeGPU and wholeInstance are all memory of the GPUs and of the smaller instance of the topologies; mostOfGPU is what a
// probe can take of a GPU, by 2 MiB.
const (
	wholeGPU      = 143771 << 20
	mostOfGPU     = 143770 << 20
	wholeInstance = 16384 << 20
)

// claimIn makes a claim in a mode, on all of a device unless the request is changed.
func (n *nvidiaNode) claimIn(uuid string, mode claim.Mode, change func(*claim.Request)) (*claim.Claim, string) {
	n.t.Helper()
	req := claim.Request{
		GPU: claim.GPU{UUID: uuid, Name: "NVIDIA H200", ContextBytes: 300 << 20}, Slices: []string{uuid}, LimitBytes: wholeGPU,
		Owner: claim.OwnerNomad, Mode: mode,
	}
	if change != nil {
		change(&req)
	}
	made, token, err := n.ledger.Reserve(n.t.Context(), req)
	must.NoError(n.t, err)
	return made, token.EnvName() + "=" + token.Reveal()
}

func smallInstance(r *claim.Request) {
	r.LimitBytes, r.Unlimited = wholeInstance, true
	r.MIG = &claim.MIG{GPUUUID: h200First, Profile: "1g.18gb", GPUInstance: 9, Start: 7, Size: 1}
}

// A container without a limit gets all memory that there is, and only its own GPU; nothing of Tranche's is in its way.
func TestContainer_Unlimited(t *testing.T) {
	cases := map[string]struct {
		uuid   string
		mode   claim.Mode
		change func(*claim.Request)
		nodes  string
		bytes  uint64
	}{
		"exclusive": {h200Second, claim.ModeExclusive, nil, "nvidia-uvm nvidia1 nvidiactl", mostOfGPU},
		"timeslice": {h200Second, claim.ModeTimeslice, nil, "nvidia-uvm nvidia1 nvidiactl", mostOfGPU},
		"an instance": {
			migSmall, claim.ModeMIG, smallInstance, "nvidia-caps/nvidia-cap84 nvidia-caps/nvidia-cap85 nvidia-uvm nvidia0 nvidiactl",
			wholeInstance,
		},
	}
	for name, tc := range cases {
		for _, next := range []string{"runc", "crun"} {
			t.Run(name+" by "+next, func(t *testing.T) {
				n := newNVIDIANode(t, next, "h200-mig.conf")
				made, env := n.claimIn(tc.uuid, tc.mode, tc.change)
				bundle := n.probe("b", env)
				must.Eq(t, tc.nodes, n.fills("c1", bundle))
				must.Eq(t, map[string]uint64{tc.uuid: tc.bytes}, n.peaks())

				must.StrNotContains(t, readFile(t, filepath.Join(bundle, "config.json")), "/.tranche")
				must.DirNotExists(t, filepath.Join(n.cfg.RunDir, "claims", made.ID))
				must.Eq(t, "c1", n.holder(made.ID).ID)
				n.must(n.oci("delete", "--force", "c1"))
				must.Nil(t, n.holder(made.ID))
			})
		}
	}
}

// Two containers share a GPU in time: each sees all of it, and the memory is whoever's takes it first.
func TestContainer_Timeslice(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200x2.conf")
	share := func(name string) string {
		_, env := n.claimIn(h200First, claim.ModeTimeslice, func(r *claim.Request) { r.Slices = []string{h200First + name} })
		return env
	}
	second := n.probe("b2", share("/share-01"))
	must.Eq(t, "nvidia-uvm nvidia0 nvidiactl", n.fills("c1", n.probe("b1", share("/share-00"))))
	must.Eq(t, map[string]uint64{h200First: mostOfGPU}, n.peaks())
	must.NoError(t, n.create("c2", second))
	n.must(n.oci("start", "c2"))
	n.waitFor("the second container is refused what the first has", func() bool { return n.status("c2") == "stopped" })
	must.StrContains(t, n.output("c2"), `"gpus":1`)
	must.StrContains(t, n.output("c2"), "OUT_OF_MEMORY")
}

// A claim with a limit beside one without: the one is held to its limit, the other has all that its GPU has.
func TestContainer_LimitedBesideUnlimited(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200x2.conf")
	_, whole := n.claimIn(h200First, claim.ModeExclusive, nil)
	_, part := n.claimOn(h200Second)
	must.Eq(t, "nvidia-uvm nvidia0 nvidia1 nvidiactl", n.fills("c1", n.probe("b", whole, part)))
	must.Eq(t, map[string]uint64{h200First: mostOfGPU, h200Second: limitOf}, n.peaks())
}

// Somebody else's hook brings another GPU into a container without a limit.
func TestContainer_UnlimitedWithTheGPUOfOthers(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200x2.conf")
	_, env := n.claimIn(h200First, claim.ModeExclusive, nil)
	bundle := n.probe("b", env)
	hook := n.path("brings-a-gpu")
	runtimetest.WriteFile(t, hook, "#!/bin/sh\nexec mknod "+filepath.Join(bundle, "rootfs/dev/nvidia1")+" c 195 1\n")
	n.edit(bundle, func(spec map[string]any) {
		spec["hooks"] = map[string]any{"createContainer": []any{map[string]any{"path": hook, "env": []string{"PATH=/bin:/usr/bin"}}}}
	})
	must.Error(t, n.create("c1", bundle))
	for _, said := range []string{"/dev/nvidia1", "claim does not include"} {
		must.StrContains(t, n.output("c1"), said)
	}
}

// What a container has of the daemon, and its limit, which holds whatever the daemon does.
func TestContainer_MPS(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newNVIDIANode(t, next, "h200x2.conf")
			dir := mpsdir.Of(n.cfg.RunDir, h200First)
			must.NoError(t, os.MkdirAll(filepath.Join(dir, "shm"), 0o755))
			runtimetest.WriteFile(t, filepath.Join(dir, "client/control"), "the daemon's")
			_, env := n.claimIn(h200First, claim.ModeMPS, func(r *claim.Request) {
				r.Slices, r.LimitBytes = []string{claim.SliceName(h200First, 0)}, limitOf
				r.MPS = &claim.MPS{Percentage: 12}
			})
			bundle := n.probe("b", env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")
			n.edit(bundle, func(spec map[string]any) {
				spec["mounts"] = append(spec["mounts"].([]any), map[string]any{
					"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": []string{"nosuid", "noexec", "nodev", "mode=1777", "size=64k"},
				})
				args := spec["process"].(map[string]any)["args"].([]any)
				args[len(args)-1] = `echo "pipes: $(busybox cat /tmp/nvidia-mps/control)"; echo client >/dev/shm/seen
busybox rm /tmp/nvidia-mps/control || echo "it stays"
busybox env | busybox grep CUDA_MPS | busybox sort; ` + args[len(args)-1].(string)
			})
			must.Eq(t, "nvidia-uvm nvidia0 nvidiactl", n.fills("c1", bundle))
			must.Eq(t, map[string]uint64{h200First: limitOf}, n.peaks())
			must.Eq(t, "client\n", readFile(t, filepath.Join(dir, "shm/seen")))
			must.StrContains(t, n.output("c1"), "pipes: the daemon's\nrm: can't remove '/tmp/nvidia-mps/control': Read-only file system\nit stays\n"+strings.Join([]string{
				"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M", "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
			}, "\n"))
		})
	}
}

// What is kept of the node's GPUs is of an instance that is gone and whose UUID another has: it is made again.
func TestContainer_InstanceWithTheUUIDOfAnEarlierOne(t *testing.T) {
	n := newNVIDIANode(t, "runc", "h200-mig.conf")
	must.NoError(t, os.RemoveAll(filepath.Join(n.cfg.DriverRoot, "etc/cdi")))
	_, env := n.claimIn(migSmall, claim.ModeMIG, smallInstance)
	const nodes = "nvidia-caps/nvidia-cap84 nvidia-caps/nvidia-cap85 nvidia-uvm nvidia0 nvidiactl"
	must.Eq(t, nodes, n.fills("c1", n.simulated(n.probe("b", env))))
	n.must(n.oci("delete", "--force", "c1"))

	files, err := filepath.Glob(filepath.Join(n.cfg.RunDir, "node/*/cdi.json"))
	must.NoError(t, err)
	must.Len(t, 1, files)
	kept := readFile(t, files[0])
	earlier := strings.NewReplacer("nvidia-cap84", "nvidia-cap12", "nvidia-cap85", "nvidia-cap13").Replace(kept)
	must.NotEq(t, kept, earlier)
	runtimetest.WriteFile(t, files[0], earlier)
	must.Eq(t, nodes, n.fills("c2", n.simulated(n.probe("b2", env))))
	must.Eq(t, kept, readFile(t, files[0]))
}
