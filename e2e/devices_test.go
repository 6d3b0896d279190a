//go:build e2e

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

type nodeUnderTest = *node.Node

func openLedger(t *testing.T, n nodeUnderTest) *claim.Ledger {
	t.Helper()
	ledger, err := claim.Open(claim.Options{StateDir: n.StateDir(), RunDir: n.RunDir()})
	must.NoError(t, err)
	return ledger
}

// workloadOf returns the names of what a claim is for. With a task the allocation's directory is recorded, which is not compared.
func workloadOf(t *testing.T, n nodeUnderTest, id string) claim.Workload {
	t.Helper()
	w, _ := openLedger(t, n).Workload(id)
	if w.Allocation != "" {
		must.Eq(t, w.Allocation, filepath.Base(w.AllocDir))
		must.DirExists(t, w.AllocDir)
	}
	w.AllocDir, w.PeakBytes = "", 0
	return w
}

// TestTwoDevices asks for slices of two GPUs in one task: two device blocks are two calls of Reserve, and the container
// gets both GPUs, each with a limit of its own.
func TestTwoDevices(t *testing.T) {
	n := startNode(t)
	start(t, n, task{
		job: "two", command: "gpu-probe", args: []string{"fill"},
		devices: []string{onGPU(3, 0), onGPU(5, 1)},
	})
	alloc := running(t, n, "two")
	saysLine(t, n, alloc.ID, `"computing"`)
	groups := held(t, n, alloc.ID)
	must.MapLen(t, 2, groups)
	claims, err := n.Claims(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	must.Len(t, 2, claims)
	for i, limit := range []uint64{3 * gib, 5 * gib} {
		must.Eq(t, limit, claims[i].LimitBytes)
		must.Eq(t, limit, groups[claims[i].GPU.UUID].Bytes)
		must.Eq(t, limit, groups[claims[i].GPU.UUID].PeakBytes)
	}
}

// TestTwoDevices_OnOneGPU has both blocks on one GPU: two claims of one workload, and an event that says what they add up to.
func TestTwoDevices_OnOneGPU(t *testing.T) {
	n := startNode(t)
	start(t, n, task{
		job: "two", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(3, 1), onGPU(5, 1)},
	})
	alloc := running(t, n, "two")
	saysLine(t, n, alloc.ID, `"computing"`)
	mustHoldExactly(t, n, alloc.ID, 8*gib)
	claims, err := n.Claims(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	must.Len(t, 2, claims)
	for _, c := range claims {
		must.Eq(t, claims[0].Container.ID, c.Container.ID)
		noted := workloadOf(t, n, c.ID)
		must.Eq(t, claim.Workload{
			Namespace: "default", Job: "two", Group: "g", Task: "t", Allocation: alloc.ID, Verified: true,
		}, noted)
	}
	alloc, err = n.WaitAlloc(deadline(t), "two", func(a *api.AllocationListStub) bool {
		return strings.Contains(node.Story(a), "their limits add up to 8GiB")
	})
	must.NoError(t, err)
	must.StrContains(t, node.Story(alloc), "2 device blocks are on")
}

// TestForeignToken carries one job's claim token in the env block of another.
func TestForeignToken(t *testing.T) {
	n := startNode(t)
	start(t, n, task{job: "victim", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(2, 0)}})
	victim := running(t, n, "victim")
	saysLine(t, n, victim.ID, `"computing"`)
	claims, err := n.Claims(deadline(t), victim.ID, "t")
	must.NoError(t, err)
	// The ledger keeps no token that could be read; this one is of a claim that another job is about to start with. It is on a
	// GPU of its own: Nomad chooses at random which slices of GPU 0 the jobs get.
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	gpu := claim.GPU{UUID: record.GPUs[1].UUID, Index: 1, Name: record.GPUs[1].Name, ContextBytes: claims[0].GPU.ContextBytes}
	ledger := openLedger(t, n)
	other, token, err := ledger.Reserve(deadline(t), claim.Request{
		GPU: gpu, Slices: []string{gpu.UUID + "/slice-139"}, LimitBytes: gib, Owner: "nomad",
	})
	must.NoError(t, err)

	for job, devices := range map[string][]string{"thief": nil, "greedy-thief": {onGPU(1, 0)}} {
		for name, value := range map[string]string{
			token.EnvName():                token.Reveal(),
			claim.EnvPrefix + claims[0].ID: "0123456789abcdef0123456789abcdef",
		} {
			job := job + strings.ToLower(name[len(claim.EnvPrefix)-1:])
			start(t, n, task{
				job: job, command: "gpu-probe", args: []string{"fill"}, devices: devices,
				taskExtra: "env {\n" + name + " = \"" + value + "\"\n}",
			})
			failsWith(t, n, job, name, "device")
		}
	}
	all, _, err := ledger.List(deadline(t))
	must.NoError(t, err)
	i := slices.IndexFunc(all, func(c *claim.Claim) bool { return c.ID == other.ID })
	must.NonNegative(t, i, must.Sprint("the other job's claim is gone"))
	must.Nil(t, all[i].Container, must.Sprint("the other job's claim was taken"))

	after, err := n.Claims(deadline(t), victim.ID, "t")
	must.NoError(t, err)
	must.Eq(t, claims, after)
	saysLine(t, n, victim.ID, `"computing"`)
	mustHoldExactly(t, n, victim.ID, 2*gib)
}

// TestPlacement covers what the scheduler does with slices: one ask lies on one GPU, what does not fit waits and starts by
// itself, and a container without a device block sees no GPU.
func TestPlacement(t *testing.T) {
	n := startNode(t)
	start(t, n, task{job: "half", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(100, 0)}})
	half := running(t, n, "half")
	saysLine(t, n, half.ID, `"computing"`)
	mustHoldExactly(t, n, half.ID, 100*gib)

	eval := start(t, n, task{job: "waits", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(41, 0)}})
	must.NotEq(t, "", eval.BlockedEval)
	allocs, _, err := n.Agent.API.Jobs().Allocations("waits", false, nil)
	must.NoError(t, err)
	must.Len(t, 0, allocs)
	must.NoError(t, n.StopJob(deadline(t), "half"))
	waits := running(t, n, "waits")
	saysLine(t, n, waits.ID, `"computing"`)
	mustHoldExactly(t, n, waits.ID, 41*gib)

	// More than any GPU has is never placed, although the two together would have it.
	eval = start(t, n, task{job: "too-big", command: "gpu-probe", args: []string{"fill"}, devices: []string{anyGPU(141)}})
	must.NotEq(t, "", eval.BlockedEval)

	// With the affinities of docs/device.md, Nomad takes the first GPU on which a job fits.
	packed, err := n.Job(filepath.Join(build, "../examples/packed.nomad.hcl"))
	must.NoError(t, err)
	*packed.TaskGroups[0].Count = 5
	_, err = n.Run(deadline(t), packed)
	must.NoError(t, err)
	for _, stub := range allRunning(t, n, "packed", 5) {
		alloc, _, err := n.Agent.API.Allocations().Info(stub.ID, nil)
		must.NoError(t, err)
		must.Eq(t, "NVIDIA H200 #0", alloc.AllocatedResources.Tasks["probe"].Devices[0].Name)
	}

	start(t, n, task{job: "bare", jobType: "batch", command: "gpu-probe", args: []string{"look"}})
	bare, err := n.WaitStatus(deadline(t), "bare", "complete")
	must.NoError(t, err)
	must.StrContains(t, saysLine(t, n, bare.ID, `"look"`), `"libcuda":false,"cuInit":-1,"gpus":0`)
}

// TestLostGPU drops a GPU off the bus: Nomad shows its slices as unhealthy, and as healthy when it has come back.
func TestLostGPU(t *testing.T) {
	n := startNode(t)
	unhealthy := func(node *api.Node, gpu string) (count int) {
		for _, d := range node.NodeResources.Devices {
			for _, i := range d.Instances {
				if d.Name == gpu && !i.Healthy && i.HealthDescription != "" {
					count++
				}
			}
		}
		return count
	}
	_, err := n.Sim.Run(deadline(t), "fault", "lost", "1", "on")
	must.NoError(t, err)
	_, err = n.WaitNode(deadline(t), func(node *api.Node) bool {
		return unhealthy(node, "NVIDIA H200 #1") == 140 && unhealthy(node, "NVIDIA H200 #0") == 0
	})
	must.NoError(t, err)
	_, err = n.Sim.Run(deadline(t), "fault", "clear")
	must.NoError(t, err)
	_, err = n.WaitNode(deadline(t), func(node *api.Node) bool { return unhealthy(node, "NVIDIA H200 #1") == 0 })
	must.NoError(t, err)
}
