package device

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	sharemig "github.com/tranche-gpu/tranche/device/share/mig"
)

// simNode is a demandNode on simulated GPUs, whose record judges.
type simNode struct {
	*demandNode
	sim *simtest.Node
}

// onSimulator runs a test on simulated GPUs on which MIG is on.
func onSimulator(t *testing.T, topology string, options map[string]any, fn func(t *testing.T, n *simNode)) {
	t.Helper()
	simtest.InProcess(t, func(t *testing.T) {
		n := &simNode{sim: simtest.New(t, topology)}
		n.demandNode = newDemandNode(t, nvml.New(n.sim.DriverRoot), options)
		n.look()
		for i := range n.sim.MIG(t).GPUs {
			if !n.sim.MIG(t).GPUs[i].Mode {
				n.sim.Run(t, "reset", strconv.Itoa(i))
			}
		}
		n.look()
		fn(t, n)
	})
}

// record are the instances of a GPU by the simulator's record.
func (n *simNode) record(gpu int) []simtest.GPUInstance {
	n.t.Helper()
	return n.sim.MIG(n.t).GPUs[gpu].Instances
}

// agrees checks that there is an instance in the record for each claim in the ledger, where it says, and no other.
func (n *simNode) agrees() {
	n.t.Helper()
	var recorded, claimed []string
	for _, g := range n.sim.MIG(n.t).GPUs {
		for _, i := range g.Instances {
			must.Len(n.t, 1, i.Compute)
			recorded = append(recorded, fmt.Sprintf("%s %s %d+%d %s", g.UUID, i.Profile, i.Start, i.Size, i.Compute[0].UUID))
		}
	}
	for _, c := range claimsOf(n.t, n.plugin) {
		must.False(n.t, c.Making())
		claimed = append(claimed, fmt.Sprintf("%s %s %d+%d %s", c.MIG.GPUUUID, c.MIG.Profile, c.MIG.Start, c.MIG.Size, c.GPU.UUID))
	}
	slices.Sort(recorded)
	slices.Sort(claimed)
	must.Eq(n.t, claimed, recorded)
}

// later has time pass for the plugin.
func (n *simNode) later(d time.Duration) {
	n.node().clock.Now = func() time.Time { return time.Now().Add(d) }
}

// unattended lets so much time pass that no claim without a container keeps its instance.
func (n *simNode) unattended() {
	const dormant = claim.StartTimeout + time.Minute
	for _, d := range []time.Duration{0, dormant, dormant + sharemig.RestartTimeout + time.Minute} {
		n.later(d)
		n.look()
	}
}

var topologies = []string{"a30x8.conf", "a100-40x8.conf", "a100-80x8.conf", "h100x8.conf", "h200x8.conf", "b200x8.conf"}

// Each number of slices, on each model, gets the smallest instance that has as much memory.
func TestDemandSim_EveryCount(t *testing.T) {
	for _, topology := range topologies {
		t.Run(topology, func(t *testing.T) {
			onSimulator(t, topology, nil, func(t *testing.T, n *simNode) {
				g := n.gpus()[7]
				sizes, err := n.library.MIGProfiles(t.Context(), g.UUID)
				must.NoError(t, err)
				all := len(n.look()[7].Devices)
				for count := 1; count <= all; count++ {
					c := n.reserve(g, upTo(count)...)
					found, _ := n.node().inventory.find(g.UUID)
					n.node().onDemand.Reconcile(t.Context(), []share.GPU{found})
					record := n.record(7)
					must.Len(t, 1, record, must.Sprint("what was there of fewer slices is gone"))
					must.Eq(t, c.GPU.UUID, record[0].Compute[0].UUID)
					must.Eq(t, []any{c.MIG.Profile, c.MIG.Start, c.MIG.Size, c.MIG.GPUInstance},
						[]any{record[0].Profile, record[0].Start, record[0].Size, record[0].ID})
					must.StrNotContains(t, c.MIG.Profile, "+")
					must.Eq(t, smallestOf(sizes, uint64(count)<<30), c.LimitBytes)
				}
				must.Eq(t, n.record(7)[0].Size, slices.MaxFunc(sizes, func(a, b mig.Profile) int {
					return a.Places[0].Size - b.Places[0].Size
				}).Places[0].Size)
				_, err = n.plugin.Reserve(sliceIDs(g, upTo(all+1)...))
				must.ErrorContains(t, err, "not devices of this node's GPUs")
			})
		})
	}
}

// smallestOf is the memory of the smallest profile that has so much.
func smallestOf(sizes []mig.Profile, bytes uint64) uint64 {
	best := uint64(0)
	for _, p := range sizes {
		if p.Bytes >= bytes && (best == 0 || p.Bytes < best) {
			best = p.Bytes
		}
	}
	return best
}

// On GPUs before Hopper MIG is on after a reset only, which others that manage GPUs prevent; until then one unhealthy slice
// says so.
func TestDemandSim_Pending(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		sim := simtest.New(t, "a100-40x8.conf")
		end := startMonitor(t, sim)
		n := newDemandNode(t, nvml.New(sim.DriverRoot), map[string]any{"slice_memory": "4GiB"})
		group := n.look()[0]
		must.Len(t, 1, group.Devices)
		must.StrContains(t, group.Devices[0].HealthDesc, "MIG is not on: MIG's mode of the GPU "+n.gpus()[0].UUID+" is set")
		must.StrContains(t, group.Devices[0].HealthDesc, "takes effect when the GPU is reset")
		_, err := n.plugin.Reserve(sliceIDs(n.gpus()[0], 0))
		must.ErrorContains(t, err, "not devices of this node's GPUs")
		end() // the plugin itself is the only one left
		must.Eq(t, upTo(9), healthyOf(n.look()[0]))
	})
}

// What MIG does on its own takes back the claim, leaves nothing, and says that another try may help.
func TestDemandSim_Faults(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		g := n.gpus()[0]
		for _, call := range []string{"gi-create", "ci-create"} {
			n.sim.Run(t, "fault", "mig", call, "1", "19") // NVML_ERROR_IN_USE
			_, err := n.plugin.Reserve(sliceIDs(g, 0, 1))
			must.ErrorContains(t, err, "create a MIG instance for claim ")
			must.ErrorContains(t, err, "the reservation can be retried")
			must.Eq(t, codes.Aborted, status.Code(err))
			must.SliceEmpty(t, n.record(0), must.Sprint(call))
			must.SliceEmpty(t, claimsOf(t, n.plugin))
		}
		for _, call := range []string{"gi-destroy", "ci-destroy"} {
			old := n.reserve(g, 0, 1, 2, 3, 4)
			// The driver lists no process on the instance that is in the way.
			n.sim.Run(t, "fault", "mig", call, "3", "19")
			_, err := n.plugin.Reserve(sliceIDs(g, 0, 1, 2, 3, 4, 5))
			must.ErrorContains(t, err, "destroy one that is in the way")
			must.Eq(t, codes.Aborted, status.Code(err))
			must.Len(t, 1, n.record(0))
			must.Eq(t, old.MIG.Profile, n.record(0)[0].Profile)
			must.SliceEmpty(t, claimsOf(t, n.plugin))
			must.SliceEmpty(t, healthyOf(n.look()[0]), must.Sprint("what cannot be destroyed is in the way"))
			must.Eq(t, upTo(8), healthyOf(n.look()[0]))
			must.SliceEmpty(t, n.record(0))
		}
		n.reserve(g, 0, 1, 2, 3)
		n.agrees()
	})
}

// Reservations that come at once on one GPU, and on eight.
func TestDemandSim_Concurrent(t *testing.T) {
	onSimulator(t, "h200x8.conf", map[string]any{"slice_memory": "16GiB"}, func(t *testing.T, n *simNode) {
		n.sim.Run(t, "fault", "mig-delay", "10")
		gpus := n.gpus()
		var all sync.WaitGroup
		errs := make([][7]error, len(gpus))
		for i, g := range gpus {
			for number := range 7 {
				all.Go(func() { _, errs[i][number] = n.plugin.Reserve(sliceIDs(g, number)) })
			}
		}
		all.Wait()
		for i := range gpus {
			for number := range 7 {
				must.NoError(t, errs[i][number])
			}
			must.Len(t, 7, n.record(i))
		}
		n.agrees()
		_, err := n.plugin.Reserve(sliceIDs(gpus[2], 7))
		must.ErrorContains(t, err, "MIG has no room on the GPU NVIDIA H200 #2")
		must.SliceContains(t, healthyOf(n.look()[2]), 6)
		must.SliceNotContains(t, healthyOf(n.look()[2]), 7)
	})
}

// A task that is restarted in place finds its instance within the time; after that, or if its room was wanted, its claim is
// gone, and the instance with it.
func TestDemandSim_RestartInPlace(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		g := n.gpus()[0]
		c := n.reserve(g, 0)
		made := n.record(0)[0]
		end := n.start(c)
		end()
		must.Eq(t, upTo(8), healthyOf(n.look()[0]), must.Sprint("nothing is in the way of a whole GPU"))
		must.Eq(t, made, n.record(0)[0], must.Sprint("the instance waits"))
		end = n.start(c)
		n.restart() // so does the agent
		n.later(24 * time.Hour)
		n.look()
		must.Eq(t, made, n.record(0)[0], must.Sprint("the container lives"))
		must.Eq(t, []int{0, 1, 2, 3, 4}, healthyOf(n.look()[0]))

		end()
		n.later(0)
		n.look()
		n.later(sharemig.RestartTimeout - time.Minute)
		n.look()
		must.Eq(t, made, n.record(0)[0])
		n.later(sharemig.RestartTimeout + time.Minute)
		n.look()
		must.SliceEmpty(t, n.record(0))
		must.SliceEmpty(t, claimsOf(t, n.plugin))
		err := n.node().ledger.Bind(t.Context(), c.ID, claim.Container{Runtime: "test", ID: "c", InitPID: 1})
		must.ErrorIs(t, err, claim.ErrUnknownClaim)

		n.later(0)
		c = n.reserve(g, 0)
		n.start(c)()
		other := n.reserve(g, 1)
		must.Len(t, 2, n.record(0), must.Sprint("there is room for both"))
		n.start(other)
		n.start(c)()
		n.reserve(g, 2, 3, 4, 5)
		n.agrees()
		must.Len(t, 3, n.record(0), must.Sprint("and for four more slices"))
		n.reserve(g, 0)
		n.look()
		n.agrees()
		err = n.node().ledger.Bind(t.Context(), c.ID, claim.Container{Runtime: "test", ID: "c", InitPID: 1})
		must.ErrorContains(t, err, "its slices were given to a later claim")
	})
}

// A container that is long in coming finds the claim and its instance as long as somebody says that it comes.
func TestDemandSim_LongStart(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		const long = 3 * (claim.StartTimeout + sharemig.RestartTimeout)
		c := n.reserve(n.gpus()[0], 0)
		made := n.record(0)
		refresh := func(after time.Duration) {
			t.Helper()
			must.NoError(t, n.node().ledger.Refresh(c.ID, time.Now().Add(after)))
		}
		refresh(long - time.Minute)
		n.later(long)
		must.Eq(t, []int{0, 1, 2, 3, 4}, healthyOf(n.look()[0]), must.Sprint("its place is held"))
		must.Eq(t, made, n.record(0))

		n.start(c)() // and once more, in place
		refresh(2*long - time.Minute)
		n.later(2 * long)
		n.look()
		must.Eq(t, made, n.record(0))
		n.later(3 * long)
		n.look()
		must.Eq(t, made, n.record(0), must.Sprint("the machine's clock may have been set"))
		refresh(3 * long)
		n.look()
		n.later(3*long + claim.StartTimeout)
		n.look()
		must.Eq(t, made, n.record(0))
		n.later(4 * long)
		n.look()
		n.later(4*long + sharemig.RestartTimeout + time.Minute)
		n.look()
		must.SliceEmpty(t, n.record(0))
		must.SliceEmpty(t, claimsOf(t, n.plugin))
	})
}

// Unused instances of a GPU with on-demand instances are destroyed; those that a process uses stay, whatever created them.
func TestDemandSim_Foreign(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		g := n.gpus()[0]
		n.sim.SMI(t, "mig", "-i", "0", "-cgi", "3g.40gb:4", "-C")
		n.sim.SMI(t, "mig", "-i", "0", "-cgi", "1g.10gb:0") // without a compute instance
		must.Eq(t, upTo(8), healthyOf(n.look()[0]))
		must.SliceEmpty(t, n.record(0))

		n.sim.SMI(t, "mig", "-i", "0", "-cgi", "3g.40gb:4", "-C")
		used := n.record(0)[0]
		probe := n.compute(used.Compute[0].UUID)
		must.Eq(t, upTo(4), healthyOf(n.look()[0]))
		must.Eq(t, used.CreatedNS, n.record(0)[0].CreatedNS)
		n.reserve(g, 0, 1)
		must.Len(t, 2, n.record(0))
		_, err := n.plugin.Reserve(sliceIDs(g, 2, 3, 4, 5))
		must.ErrorContains(t, err, "in use by claim ")
		must.ErrorContains(t, err, fmt.Sprintf(", process %d: ask for fewer", probe.Process.Pid))
		must.NoError(t, probe.Process.Kill())
		_ = probe.Wait()
		must.Len(t, 2+4, healthyOf(n.look()[0]))
		n.agrees()

		n.sim.SMI(t, "mig", "-i", "1", "-cgi", "3g.40gb:4", "-C")
		n.options["ignored_gpu_ids"] = []string{n.record(1)[0].Compute[0].UUID}
		n.restart()
		must.Eq(t, upTo(4), healthyOf(n.look()[1]), must.Sprint("what is not for Nomad stays"))
		must.Len(t, 1, n.record(1))
	})
}

// compute has a program take memory of an instance, as much as it gets.
func (n *simNode) compute(uuid string) *exec.Cmd {
	n.t.Helper()
	probe, err := filepath.Abs("../build/e2e/gpu-probe")
	must.NoError(n.t, err)
	command := exec.CommandContext(n.t.Context(), probe, "fill")
	command.Env = append(n.sim.SMIEnv(), "CUDA_VISIBLE_DEVICES="+uuid)
	stdout, err := command.StdoutPipe()
	must.NoError(n.t, err)
	must.NoError(n.t, command.Start())
	n.t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if strings.Contains(lines.Text(), `"computing"`) {
			return command
		}
	}
	n.t.Fatal("the probe has ended")
	return nil
}

// spoil has a claim's record be cut off.
func (n *simNode) spoil(c *claim.Claim) {
	n.t.Helper()
	dir, err := n.node().ledger.WatchDir()
	must.NoError(n.t, err)
	file := filepath.Join(dir, c.ID+".json")
	content, err := os.ReadFile(file)
	must.NoError(n.t, err)
	must.NoError(n.t, os.WriteFile(file, content[:len(content)/2], 0o600))
}

// MIG turned off behind the plugin's back is turned on again, when nobody has anything of the GPU any more.
func TestDemandSim_TurnedOff(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		g := n.gpus()[0]
		c := n.reserve(g, 0)
		end := n.start(c)
		n.sim.SMI(t, "mig", "-i", "0", "-dci")
		n.sim.SMI(t, "mig", "-i", "0", "-dgi")
		n.sim.SMI(t, "-i", "0", "-mig", "0")
		_, err := n.plugin.Reserve(sliceIDs(g, 1))
		must.ErrorContains(t, err, "MIG was turned off on the GPU NVIDIA H100 80GB HBM3 #0")
		must.Eq(t, codes.Aborted, status.Code(err))
		group := n.look()[0]
		must.SliceEmpty(t, healthyOf(group))
		must.Len(t, 8, group.Devices)
		must.Eq(t, "MIG is not on: it waits for claim "+c.ID+" to turn MIG on", group.Devices[3].HealthDesc)
		end()
		must.Eq(t, upTo(8), healthyOf(n.look()[0]))
		must.True(t, n.sim.MIG(t).GPUs[0].Mode)
		n.look()
		must.SliceEmpty(t, claimsOf(t, n.plugin), must.Sprint("no container can come back to what is gone"))
	})
}

// A claim whose record cannot be read may have the instance that no claim names.
func TestDemandSim_UnreadableClaim(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		c := n.reserve(n.gpus()[0], 0)
		n.spoil(c)
		n.later(24 * time.Hour)
		n.look()
		must.Len(t, 1, n.record(0))
		must.Len(t, 4, healthyOf(n.look()[0]))
		_, err := n.plugin.Reserve(sliceIDs(n.gpus()[0], upTo(7)...))
		must.ErrorContains(t, err, "in use by a claim that cannot be read")
	})
}

// profilesOf are the instances of a GPU in the record, as profile:slot.
func (n *simNode) profilesOf(gpu int) string {
	n.t.Helper()
	var all []string
	for _, i := range n.record(gpu) {
		all = append(all, fmt.Sprintf("%s:%d", i.Profile, i.Start))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
