package device

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// statsOf are the statistics of one device.
func (n *demandNode) statsOf(id string) map[string]string {
	n.t.Helper()
	for _, group := range n.node().stats.collect(n.t.Context(), time.Now()) {
		if stats := group.InstanceStats[id]; stats != nil {
			return texts(stats)
		}
	}
	n.t.Fatalf("there are no statistics of %s", id)
	return nil
}

// Each instance has its own memory in the statistics, in whatever way it came to be.
func TestStatsSim_Instances(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		n := &simNode{sim: simtest.New(t, "h100x8.conf")}
		n.demandNode = newDemandNode(t, nvml.New(n.sim.DriverRoot), map[string]any{"slice_memory": "9GiB", "gpu": gpuBlocks(
			migBlock("index:1", "1g.10gb", "2g.20gb"), map[string]any{"gpu": "index:2", "mode": "exclusive"},
		)})
		n.sim.SMI(t, "-i", "2", "-mig", "1")
		n.sim.SMI(t, "mig", "-i", "2", "-cgi", "1g.10gb,3g.40gb", "-C")
		n.look()
		n.look()
		g := n.gpus()[0]
		busy, idle := n.reserve(g, 3, 4), n.reserve(g, 5)
		n.compute(busy.GPU.UUID)
		devices := map[string]string{sliceIDs(g, 3)[0]: busy.GPU.UUID, sliceIDs(g, 4)[0]: busy.GPU.UUID, sliceIDs(g, 5)[0]: idle.GPU.UUID}
		for gpu := 1; gpu <= 2; gpu++ {
			instances := n.gpus()[gpu].MIG.Instances
			must.Len(t, 2, instances)
			n.compute(instances[0].UUID)
			for _, i := range instances {
				devices[i.UUID] = i.UUID
			}
		}
		for id, uuid := range devices {
			used, total := n.memoryOf(uuid)
			stats := n.statsOf(id)
			whole := fmt.Sprintf("%d/%dMiB", used>>20, total>>20)
			switch id {
			case sliceIDs(g, 3)[0]:
				must.Eq(t, fmt.Sprintf("%d/%dMiB", used>>20/2, total>>20/2), stats["summary"], must.Sprint("one of two slices"))
				must.Eq(t, whole, stats["Memory state"])
			case sliceIDs(g, 4)[0]:
				must.Eq(t, fmt.Sprintf("%d/%dMiB", used>>20-used>>20/2, total>>20-total>>20/2), stats["summary"])
				must.MapNotContainsKey(t, stats, "Memory state", must.Sprint("the claim's first slice has it"))
			default:
				must.Eq(t, whole, stats["summary"], must.Sprint(id))
				must.Eq(t, whole, stats["Memory state"])
			}
		}
		must.Eq(t, busy.ID, n.statsOf(sliceIDs(g, 4)[0])["Claim"])
		must.Eq(t, "2", n.statsOf(sliceIDs(g, 3)[0])["Claim slices"])
		must.NotEq(t, n.statsOf(sliceIDs(g, 3)[0])["Claim memory"], n.statsOf(sliceIDs(g, 5)[0])["Claim memory"])
		must.Eq(t, "0/9216MiB", n.statsOf(sliceIDs(g, 1)[0])["summary"])
		must.Eq(t, "N/A", n.statsOf(sliceIDs(g, 3)[0])["GPU utilization"])
		must.NotEq(t, "N/A", n.statsOf(sliceIDs(g, 3)[0])["Power usage"])
		must.MapNotContainsKey(t, n.statsOf(sliceIDs(g, 0)[0]), "Claim")
	})
}

// memoryOf is what is in use of an instance by the simulator's record, with what its driver keeps, and all it has.
func (n *simNode) memoryOf(uuid string) (used, total uint64) {
	n.t.Helper()
	for _, g := range n.sim.MIG(n.t).GPUs {
		for _, i := range g.Instances {
			if i.Compute[0].UUID == uuid {
				memory, err := n.library.InstanceMemory(n.t.Context(), uuid)
				must.NoError(n.t, err)
				kept := uint64(*memory.MemoryBytes) - i.MemoryBytes
				return i.UsedBytes + kept, i.MemoryBytes + kept
			}
		}
	}
	n.t.Fatalf("there is no instance %s", uuid)
	return 0, 0
}
