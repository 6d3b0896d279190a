package wrapper_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	simgpu "github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// simulatedNode is a node whose GPUs are simulated and whose libraries are the real shadow and the simulated driver.
type simulatedNode struct {
	*node
	sim *simgpu.Sim
}

func newSimulatedNode(t *testing.T, next string) *simulatedNode {
	t.Helper()
	n := newContainerNode(t, next)
	build := os.Getenv("TRANCHE_BUILD")
	must.NotEq(t, "", build, must.Sprint("TRANCHE_BUILD names the build folder"))
	sim := simgpu.NewSim(build, t.TempDir())
	must.NoError(t, sim.LayOut(t.Context(), "../../e2e/simgpu/topologies/h200x2.conf"))
	n.cfg.DriverRoot, n.cfg.ShadowDir = sim.Root, filepath.Join(build, "lib")
	n.configure(next)
	// A file system of the regions alone, so that it can be told what they take of it.
	must.NoError(t, os.MkdirAll(n.cfg.RunDir, 0o755))
	must.NoError(t, unix.Mount("tmpfs", n.cfg.RunDir, "tmpfs", 0, "size=16m"))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(n.cfg.RunDir, unix.MNT_DETACH)) })
	return &simulatedNode{n, sim}
}

// program puts a program of the build folder, with the libraries that it needs, into a bundle that runs it.
func (n *simulatedNode) program(bundle, name string, args ...string) string {
	n.t.Helper()
	rootfs := filepath.Join(n.image(bundle), "rootfs")
	binary := filepath.Join(os.Getenv("TRANCHE_BUILD"), "e2e", name)
	output, err := exec.Command("ldd", binary).Output()
	must.NoError(n.t, err)
	files := map[string]string{"/bin/" + name: binary}
	for _, field := range strings.Fields(string(output)) {
		if filepath.IsAbs(field) {
			files[field] = field
			for _, sibling := range []string{"libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"} {
				file := filepath.Join(filepath.Dir(field), sibling)
				if _, err := os.Stat(file); err == nil {
					files[file] = file
				}
			}
		}
	}
	for to, from := range files {
		content, err := os.ReadFile(from)
		must.NoError(n.t, err)
		runtimetest.WriteFile(n.t, filepath.Join(rootfs, to), string(content))
	}
	n.respec(bundle, func(spec map[string]any) {
		spec["process"].(map[string]any)["args"] = append([]string{"/bin/" + name}, args...)
		// Simulated devices are characters devices of no such GPU; a real GPU's would be allowed by the same edits.
		spec["linux"].(map[string]any)["resources"] = map[string]any{}
	})
	return bundle
}

// attack is a container that uses a GPU.
type attack struct {
	claim *claim.Claim
	group string
	init  int
}

// start starts a container with a claim of so many bytes on GPU 0, and waits until it says that event.
func (n *simulatedNode) start(id, slice, event, program string, args ...string) attack {
	n.t.Helper()
	uuid := n.uuid()
	made, token, err := n.ledger.Reserve(n.t.Context(), claim.Request{
		GPU:    claim.GPU{UUID: uuid, Name: "NVIDIA H200", ContextBytes: 300 << 20},
		Slices: []string{uuid + "/" + slice}, LimitBytes: limitOfAttacks, Owner: claim.OwnerNomad,
	})
	must.NoError(n.t, err)
	bundle := n.program(n.bundle(id, "", token.EnvName()+"="+token.Reveal(), "TRANCHE_REGIONS=/tmp"), program, args...)
	must.NoError(n.t, n.create(id, bundle), must.Func(func() string { return n.output(id) }))
	init := n.holder(made.ID).InitPID
	group, err := simgpu.GroupOf(init)
	must.NoError(n.t, err)
	n.must(n.oci("start", id))
	n.waitFor(id+" says "+event, func() bool {
		return strings.Contains(n.output(id), `"event":"`+event+`"`) || n.status(id) == "stopped"
	})
	must.StrContains(n.t, n.output(id), `"event":"`+event+`"`)
	return attack{made, group, init}
}

const limitOfAttacks = 1 << 30

func (n *simulatedNode) uuid() string {
	n.t.Helper()
	record, err := n.sim.Record(n.t.Context())
	must.NoError(n.t, err)
	return record.GPUs[0].UUID
}

// holds is what the simulator has on record for a container: bytes now, and the most that there ever were.
func (n *simulatedNode) holds(a attack) (bytes, peak uint64) {
	n.t.Helper()
	record, err := n.sim.Record(n.t.Context())
	must.NoError(n.t, err)
	group := record.Group(a.group)[n.uuid()]
	return group.Bytes, group.PeakBytes
}

// mustHold checks that a container holds its limit, and that it never held more.
func (n *simulatedNode) mustHold(a attack) {
	n.t.Helper()
	bytes, peak := n.holds(a)
	must.Between(n.t, limitOfAttacks-(2<<20)+1, bytes, limitOfAttacks)
	must.LessEq(n.t, uint64(limitOfAttacks), peak)
}

// What a container does to its own region, whatever it is, leaves its neighbours and the host alone: the neighbour that was
// there keeps what it has, one that comes gets all that it may, and who looks after claims continues as ever. The vandal
// gets at most its own limit. The simulator's record of physical memory is the judge.
func TestHostileRegion(t *testing.T) {
	const full, damaged, ended = "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_SYSTEM_NOT_READY", "SIGBUS"
	attacks := map[string]string{ // what the driver answers the vandal at last
		"none": full, "locks": full, "leases": full, "modes": full, "slots": full, "replace": full,
		"noise": damaged, "noise-behind-header": damaged, "holes": damaged, "lengthen": damaged, "fill-disk": damaged,
		"shorten": ended, "empty": ended,
	}
	n := newSimulatedNode(t, "runc")
	before := n.start("before", "slice-000", "full", "gpu-probe", "fill")
	n.mustHold(before)
	diskBefore := n.diskUse() // a bounded region takes nothing of it
	for name, want := range attacks {
		t.Run(name, func(t *testing.T) {
			vandal := n.start("vandal-"+name, "slice-001", "attacked", "vandal", name)
			_, peak := n.holds(vandal)
			must.Positive(t, peak)
			must.LessEq(t, uint64(limitOfAttacks), peak)
			said := n.output("vandal-" + name)
			must.StrNotContains(t, said, "broke out")
			must.StrContains(t, said, want)

			must.LessEq(t, diskBefore+1<<20, n.diskUse())

			n.mustHold(before)
			after := n.start("after-"+name, "slice-002", "full", "gpu-probe", "fill")
			n.mustHold(after)
			must.Eq(t, "running", n.status("before"))
			n.hostGoesOn(before, vandal, after)

			for _, id := range []string{"vandal-" + name, "after-" + name} {
				n.must(n.oci("delete", "--force", id))
			}
			must.Nil(t, n.holder(vandal.claim.ID))
			must.DirNotExists(t, filepath.Join(n.cfg.RunDir, "claims", vandal.claim.ID))
			must.Eq(t, diskBefore, n.diskUse())
		})
	}
	n.mustHold(before)
}

// hostGoesOn checks that those who look after claims see the neighbours as they are, and no more than an error of the
// vandal's own.
func (n *simulatedNode) hostGoesOn(before, vandal, after attack) {
	n.t.Helper()
	ctx := n.t.Context()
	released, err := n.ledger.Sweep(ctx)
	must.NoError(n.t, err)
	must.SliceEmpty(n.t, released)
	_, problems, err := n.ledger.List(ctx)
	must.NoError(n.t, err)
	must.SliceEmpty(n.t, problems)
	for _, neighbour := range []attack{before, after} {
		bytes, _ := n.holds(neighbour)
		usage, err := n.ledger.Usage(ctx, neighbour.claim.ID)
		must.NoError(n.t, err)
		must.Eq(n.t, bytes, usage.UsedBytes)
		must.Eq(n.t, limitOfAttacks, usage.LimitBytes)
	}
	if _, err := n.ledger.Usage(ctx, vandal.claim.ID); err != nil {
		must.ErrorContains(n.t, err, vandal.claim.ID)
	}
	header, err := region.ReadHeader(filepath.Join(n.cfg.RunDir, "claims", before.claim.ID))
	must.NoError(n.t, err)
	must.Eq(n.t, limitOfAttacks, header.LimitBytes)
	n.statusGoesOn(before, after)
}

// statusGoesOn checks what the operator sees.
func (n *simulatedNode) statusGoesOn(neighbours ...attack) {
	n.t.Helper()
	cmd := exec.Command(n.path("cli/tranche"), "status", "--json", "--driver-root", n.sim.Root,
		"--state-dir", n.cfg.StateDir, "--run-dir", n.cfg.RunDir)
	cmd.Env = append(os.Environ(), n.sim.Env()...)
	var report struct {
		Claims []struct {
			ID    string
			Usage *struct {
				UsedBytes uint64 `json:"used_bytes"`
			}
		}
	}
	must.NoError(n.t, json.NewDecoder(io.Reader(bytes.NewReader([]byte(n.must(cmd))))).Decode(&report))
	found := 0
	for _, c := range report.Claims {
		for _, neighbour := range neighbours {
			if c.ID == neighbour.claim.ID {
				bytes, _ := n.holds(neighbour)
				must.Eq(n.t, bytes, c.Usage.UsedBytes)
				found++
			}
		}
	}
	must.Eq(n.t, len(neighbours), found, must.Sprint(fmt.Sprint(report)))
}

// diskUse is how many bytes are in use on the file system that all regions lie on.
func (n *simulatedNode) diskUse() uint64 {
	n.t.Helper()
	var fs unix.Statfs_t
	must.NoError(n.t, unix.Statfs(n.cfg.RunDir, &fs))
	return (fs.Blocks - fs.Bfree) * uint64(fs.Bsize)
}
