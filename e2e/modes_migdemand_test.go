//go:build e2e

package e2e

import (
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// onDemand is the example of slices of which each task's become an instance by MIG. Four of 4 GiB take one of 3g.20gb.
var onDemand = modeExample{
	name: "mig-slices", count: 1, devices: 4, group: "nvidia/slice/NVIDIA A100-SXM4-40GB #1", gpu: 1,
	seesName: "NVIDIA A100-SXM4-40GB MIG 3g.20gb", sees: threeG, nvml: 40960 * mib, takes: threeG, slack: 2 * mib,
}

// TestModeMIGOnDemand runs the example of instances that are made for tasks. A job that needs the whole GPU waits for it, and
// starts by itself when it has gone, on an instance that takes the place of the other.
func TestModeMIGOnDemand(t *testing.T) {
	n := startMixed(t)
	must.SliceEmpty(t, instances(t, n))
	onDemand.check(t, n, runExample(t, n, onDemand.name, onDemand.count))
	must.Eq(t, []string{"3g.20gb"}, instances(t, n))

	_, err := n.WaitNode(deadline(t), func(info *api.Node) bool { return healthyOn(info, "NVIDIA A100-SXM4-40GB #1") < 9 })
	must.NoError(t, err, must.Sprint("Nomad does not hear of what has no room beside the instance"))
	eval := start(t, n, task{job: "large", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(9, 1)}})
	must.NotEq(t, "", eval.BlockedEval)
	must.NoError(t, n.StopJob(deadline(t), onDemand.name))
	large := running(t, n, "large")
	saysLine(t, n, large.ID, `"computing"`)
	must.Eq(t, []string{"7g.40gb"}, instances(t, n))
	groups := held(t, n, large.ID)
	must.MapLen(t, 1, groups)
	for uuid, g := range groups {
		must.NotEq(t, mixedGPUs[1], uuid)
		must.Greater(t, 9*4*gib, g.Bytes)
	}
	endsClean(t, n, "large")
}

// instances are the profiles of those that the simulator has on the GPU that is cut on demand.
func instances(t *testing.T, n *node.Node) []string {
	t.Helper()
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	return record.Profiles(mixedGPUs[1])
}

// healthyOn is how many slices of a group Nomad may give out.
func healthyOn(info *api.Node, name string) (count int) {
	for _, group := range info.NodeResources.Devices {
		for _, slice := range group.Instances {
			if group.Name == name && slice.Healthy {
				count++
			}
		}
	}
	return count
}
