package device

import (
	"strings"
	"testing"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	sharemig "github.com/tranche-gpu/tranche/device/share/mig"
)

// again is the plugin after a restart of the agent, with other options for the first GPU.
func (n *simNode) again(block map[string]any) {
	n.t.Helper()
	block["gpu"] = "index:0"
	n.options["gpu"] = gpuBlocks(block)
	n.restart()
}

// groupsOf are the groups of the first GPU of an eight-GPU node, whose others are slices on demand.
func groupsOf(groups []*ndevice.DeviceGroup) []string {
	var first []string
	for _, line := range lines(groups) {
		if !strings.HasPrefix(line, "slice NVIDIA H100 80GB HBM3 #") || strings.Contains(line, "#0") {
			first = append(first, line)
		}
	}
	return first
}

// reasons are why devices are unhealthy.
func reasons(groups []*ndevice.DeviceGroup) []string {
	var all []string
	for _, group := range groups {
		for _, d := range group.Devices {
			if !d.Healthy {
				all = append(all, d.HealthDesc)
			}
		}
	}
	return all
}

// A GPU that is to be cut up on demand waits for the tasks that have it as a whole, and those with an instance keep it when
// the GPU is to be shared in another way.
func TestDemandSim_Changes(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		g := n.gpus()[0]
		n.sim.SMI(t, "-i", "0", "-mig", "0")
		n.again(map[string]any{"mode": "slice"})
		n.look()
		reservation, err := n.plugin.Reserve(sliceIDs(g, 0, 1))
		must.NoError(t, err)
		whole := n.claim(reservation)
		end := n.start(whole)

		n.again(map[string]any{"mode": "mig"})
		groups := n.look()
		must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 #0: -"}, groupsOf(groups))
		must.Eq(t, []string{"MIG is not on: it waits for claim " + whole.ID + " to turn MIG on"}, reasons(groups))
		end()
		must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 #0: ++++++++"}, groupsOf(n.look()))
		c := n.reserve(g, 0)
		must.Len(t, 1, claimsOf(t, n.plugin), must.Sprint("the claim on slices of the whole GPU is superseded"))
		end = n.start(c)
		instance := n.record(0)[0]

		n.again(map[string]any{"mode": "mig", "mig": []any{map[string]any{"profiles": []any{"1g.10gb", "3g.40gb"}}}})
		groups = n.look()
		must.Eq(t, []string{
			"gpu NVIDIA H100 80GB HBM3 MIG 1g.10gb: -", "gpu NVIDIA H100 80GB HBM3 MIG 3g.40gb: +",
		}, groupsOf(groups), must.Sprint("the task's instance is as good as one that is declared, but not free"))
		must.Eq(t, []string{"waits for claim " + c.ID + ", whose GPU is in mode mig (9GiB) until its task has ended"}, reasons(groups))
		_, err = n.plugin.Reserve([]string{c.GPU.UUID})
		must.ErrorContains(t, err, c.ID)

		still := "MIG is still on: it waits for claim " + c.ID + " to turn MIG off"
		n.again(map[string]any{"mode": "exclusive"})
		groups = n.look()
		must.Eq(t, []string{
			"gpu NVIDIA H100 80GB HBM3 MIG 1g.10gb: -", "gpu NVIDIA H100 80GB HBM3 MIG 3g.40gb: -",
		}, groupsOf(groups), must.Sprint("they will be gone"))
		must.Eq(t, still, reasons(groups)[0])
		n.again(map[string]any{"mode": "slice"})
		must.Eq(t, still, reasons(n.look())[0])

		n.again(map[string]any{"mode": "mig"})
		must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 #0: +++++---"}, groupsOf(n.look()))
		must.Eq(t, "1g.10gb:6", n.profilesOf(0), must.Sprint("the instance that was declared is gone"))
		must.Eq(t, instance, n.record(0)[0], must.Sprint("through all of it"))
		end()
		must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 #0: ++++++++"}, groupsOf(n.look()))
	})
}

// A task that has a declared instance keeps it when instances are made on demand from now on.
func TestDemandSim_FromDeclared(t *testing.T) {
	onSimulator(t, "h100x8.conf", map[string]any{"slice_memory": "9GiB"}, func(t *testing.T, n *simNode) {
		n.again(map[string]any{"mode": "mig", "mig": []any{map[string]any{"profiles": []any{"2g.20gb", "3g.40gb"}}}})
		n.look()
		var declared string
		for _, i := range n.gpus()[0].MIG.Instances {
			if i.Profile == "2g.20gb" {
				declared = i.UUID
			}
		}
		reservation, err := n.plugin.Reserve([]string{declared})
		must.NoError(t, err)
		c := n.claim(reservation)
		end := n.start(c)
		n.again(map[string]any{"mode": "mig"})
		must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 #0: ++++----"}, groupsOf(n.look()))
		must.Eq(t, "2g.20gb:4", n.profilesOf(0))
		n.reserve(n.gpus()[0], 0, 1, 2, 3)
		n.agrees()
		end()
		must.Eq(t, claim.ModeMIG, n.claim(reservation).Mode)
		must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 #0: ++++++++"}, groupsOf(n.look()))
		n.later(sharemig.RestartTimeout + 1)
		n.look()
		must.Eq(t, "3g.40gb:0", n.profilesOf(0))
	})
}
