//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestManySlices fills a node of eight GPUs with 140 slices each: all 1,120 are there, are given out, each to one, and are
// there again.
func TestManySlices(t *testing.T) {
	const (
		gpus, each   = 8, 140
		small, tasks = 28, 35 // five on each GPU but one
	)
	n := startNode(t, func(c *node.Config) { c.Topology = roomyH200s(t) })
	all, err := n.WaitNode(deadline(t), func(info *api.Node) bool { return len(healthySlices(info)) == gpus*each })
	must.NoError(t, err)
	must.Len(t, gpus, all.NodeResources.Devices)
	for _, group := range all.NodeResources.Devices {
		must.Len(t, each, group.Instances)
	}

	start(t, n, task{job: "whole", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(each, 3)}})
	whole := running(t, n, "whole")
	saysLine(t, n, whole.ID, `"computing"`)
	mustHoldExactly(t, n, whole.ID, each*gib)

	start(t, n, task{
		job: "small", count: tasks, memoryMiB: 32, command: "gpu-probe", args: []string{"take", "1024"}, devices: []string{anyGPU(small)},
	})
	holder := map[string]string{}
	for _, alloc := range append(allRunning(t, n, "small", tasks), whole) {
		saysLine(t, n, alloc.ID, `"computing"`)
		info, _, err := n.Agent.API.Allocations().Info(alloc.ID, nil)
		must.NoError(t, err)
		for _, id := range info.AllocatedResources.Tasks["t"].Devices[0].DeviceIDs {
			must.MapNotContainsKey(t, holder, id, must.Sprintf("%s and %s", alloc.ID, holder[id]))
			holder[id] = alloc.ID
		}
	}
	must.MapLen(t, gpus*each, holder)
	mustBeDisjoint(t, n)
	mustHoldWithin(t, n, tasks+1)
	eval := start(t, n, task{job: "one-more", command: "gpu-probe", args: []string{"look"}, devices: []string{anyGPU(1)}})
	must.NotEq(t, "", eval.BlockedEval)

	must.NoError(t, n.StopJob(deadline(t), "one-more"))
	endsClean(t, n, "whole", "small")
	all, err = n.WaitNode(deadline(t), func(*api.Node) bool { return true })
	must.NoError(t, err)
	must.Len(t, gpus*each, healthySlices(all))
}

// roomyH200s is h200x8.conf with a driver that keeps less for itself, so that each GPU has 140 GiB for processes.
func roomyH200s(t *testing.T) string {
	t.Helper()
	text := readFile(t, filepath.Join(build, "../e2e/simgpu/topologies/h200x8.conf"))
	file := filepath.Join(t.TempDir(), "topology.conf")
	roomy := strings.NewReplacer("memory_mib = 143156", "memory_mib = 143360", "reserved_mib = 615", "reserved_mib = 411").Replace(text)
	must.NotEq(t, text, roomy)
	must.NoError(t, os.WriteFile(file, []byte(roomy), 0o644))
	return file
}

// healthySlices are the slices that Nomad may give out.
func healthySlices(info *api.Node) (ids []string) {
	for _, group := range info.NodeResources.Devices {
		for _, slice := range group.Instances {
			if group.Type == "slice" && slice.Healthy {
				ids = append(ids, slice.ID)
			}
		}
	}
	return ids
}

// mustHoldWithin checks by the simulator's record that so many containers have memory, each of one GPU and no more than its
// claim's limit, and that no GPU's containers have more than the GPU.
func mustHoldWithin(t *testing.T, n *node.Node, containers int) {
	t.Helper()
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	claims, err := n.AllClaims(deadline(t))
	must.NoError(t, err)
	found, sums := 0, map[string]uint64{}
	for _, c := range claims {
		if c.Container == nil || !c.Released.IsZero() {
			continue
		}
		group, err := node.GroupOf(c.Container.InitPID)
		must.NoError(t, err)
		groups := record.Group(group)
		must.MapLen(t, 1, groups)
		must.LessEq(t, c.LimitBytes, groups[c.GPU.UUID].PeakBytes)
		must.Positive(t, groups[c.GPU.UUID].Bytes)
		sums[c.GPU.UUID] += groups[c.GPU.UUID].Bytes
		found++
	}
	must.Eq(t, containers, found)
	for _, gpu := range record.GPUs {
		must.LessEq(t, gpu.MemoryBytes, sums[gpu.UUID])
		must.Eq(t, gpu.UsedBytes, sums[gpu.UUID], must.Sprint("memory that no claim accounts for"))
	}
}
