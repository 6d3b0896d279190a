package device

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
)

// sharedBlock is a gpu block whose declared MIG instances several tasks share.
func sharedBlock(mode string, more map[string]any, profiles ...string) map[string]any {
	block := migBlock("index:0", profiles...)
	block["mig"].([]any)[0].(map[string]any)["mode"] = mode
	for option, value := range more {
		block[option] = value
	}
	return block
}

// onInstances are the groups of the MIG instances of a node's only GPU with MIG.
func onInstances(groups []*ndevice.DeviceGroup) (found []*ndevice.DeviceGroup) {
	for _, group := range groups {
		if strings.Contains(group.Name, " MIG") {
			found = append(found, group)
		}
	}
	return found
}

// A declared instance in mode slice is a GPU of its own: its group, its slices, its claims and its statistics.
func TestMIGShared_Slices(t *testing.T) {
	n := newMIGNode(t)
	n.options["gpu"] = gpuBlocks(sharedBlock("slice", map[string]any{"slice_memory": "5GiB", "compute": "shares"}, "3g.40gb", "2g.20gb"))
	n.options["max_slices"] = 6
	n.plugin = newPlugin(t, n.library, n.options)
	stream := fingerprint(t, n.plugin)
	groups := onInstances(next(t, stream).Devices)
	large, small := n.named(t, "3g.40gb"), n.named(t, "2g.20gb")
	of := func(instance nvml.MIGInstance) *ndevice.DeviceGroup {
		return groups[slices.IndexFunc(groups, func(g *ndevice.DeviceGroup) bool { return strings.HasPrefix(g.Devices[0].ID, instance.UUID) })]
	}
	must.Len(t, 2, groups)
	must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 MIG 3g.40gb #0.0: ++++++++"}, lines([]*ndevice.DeviceGroup{of(large)}))
	must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 MIG 2g.20gb #0.4: ++++"}, lines([]*ndevice.DeviceGroup{of(small)}))
	for name, want := range map[string]*structs.Attribute{
		"mode": structs.NewStringAttribute("slice"), "isolation": structs.NewStringAttribute("memory"),
		"model": structs.NewStringAttribute("NVIDIA H100 80GB HBM3"), "memory": structs.NewIntAttribute(40<<10, "MiB"),
		"sm_count": structs.NewIntAttribute(int64(large.Multiprocessors), ""), "index": structs.NewIntAttribute(0, ""), "slices": structs.NewIntAttribute(8, ""),
		"mig_profile": structs.NewStringAttribute("3g.40gb"), "mig_slot": structs.NewIntAttribute(0, ""),
		"unique.uuid": structs.NewStringAttribute(large.UUID),
	} {
		must.Eq(t, want, of(large).Attributes[name], must.Sprint(name))
	}
	must.NoError(t, of(large).Validate())

	for _, bad := range [][]string{{large.UUID}, {large.UUID + "/slice-008"}, {n.gpu(t).UUID + "/slice-000"}} {
		_, err := n.plugin.Reserve(bad)
		must.ErrorContains(t, err, "not devices of this node's GPUs", must.Sprint(bad))
	}
	_, err := n.plugin.Reserve([]string{of(large).Devices[0].ID, of(small).Devices[0].ID})
	must.ErrorContains(t, err, "the reservation names slices of 2 GPUs")
	_, err = n.plugin.Reserve([]string{of(large).Devices[0].ID, of(large).Devices[3].ID})
	must.NoError(t, err)
	made := claimsOf(t, n.plugin)[0]
	must.Eq(t, claim.GPU{UUID: large.UUID, Name: large.Name, ContextBytes: 300 << 20}, made.GPU)
	must.Eq(t, claim.ModeSlice, made.Mode)
	must.Eq(t, 10<<30, made.LimitBytes)
	must.Eq(t, &claim.Compute{Share: 250, Max: 1000, Class: claim.ClassNormal}, made.Compute, must.Sprint("two of eight"))

	collected := n.plugin.node.Load().stats.collect(t.Context(), time.Now())
	stats := collected[slices.IndexFunc(collected, func(g *ndevice.DeviceGroupStats) bool { return g.Name == of(large).Name })]
	must.MapLen(t, 8, stats.InstanceStats)
	first := texts(stats.InstanceStats[made.Slices[0]])
	must.Eq(t, "0/10240MiB", first["Claim memory"])
	must.Eq(t, "0/40960MiB", first["Memory state"], must.Sprint("the instance's own"))
	must.Eq(t, "68/700W", first["Power usage"], must.Sprint("the GPU's"))

	ask(t, n.plugin.node.Load().ledger.Ledger, nvml.GPU{UUID: small.UUID, Name: small.Name}, 1, 5<<30)
	for group := of(small); healthyCount(group) == 4; group = of(small) {
		groups = onInstances(next(t, stream).Devices)
	}
	must.StrContains(t, of(small).Devices[0].HealthDesc, "used outside Nomad by claim ")
}

func healthyCount(group *ndevice.DeviceGroup) (count int) {
	for _, d := range group.Devices {
		if d.Healthy {
			count++
		}
	}
	return count
}

// What is published for others on the node has the instances, and one that is gone is missing until it is there again.
func TestMIGShared_InstanceGone(t *testing.T) {
	n := newMIGNode(t)
	n.options["gpu"] = gpuBlocks(sharedBlock("timeslice", map[string]any{"replicas": 4}, "3g.40gb", "1g.10gb"))
	n.plugin = newPlugin(t, n.library, n.options)
	both := []string{
		"timeslice NVIDIA H100 80GB HBM3 MIG 3g.40gb #0.0: ++++", "timeslice NVIDIA H100 80GB HBM3 MIG 1g.10gb #0.3: ++++",
	}
	must.Eq(t, both, lines(onInstances(fingerprintOnce(t, n.plugin).Devices)))
	node, gone := n.plugin.node.Load(), n.named(t, "1g.10gb") // its loop has ended
	node.update(t.Context())
	shared, err := layout.Read(node.runDir)
	must.NoError(t, err)
	must.Eq(t, layout.GPU{
		Mode: claim.ModeTimeslice, Replicas: 4, MemoryBytes: gone.MemoryBytes, WholeBytes: n.gpu(t).MemoryBytes,
	}, shared[gone.UUID])
	must.Eq(t, layout.GPU{Mode: claim.ModeMIG, MemoryBytes: n.gpu(t).MemoryBytes}, shared[n.gpu(t).UUID])

	must.NoError(t, n.library.DestroyInstance(t.Context(), n.gpu(t).UUID, gone.GPUInstance))
	must.NoError(t, node.scanner.scan(t.Context()))
	must.Eq(t, []string{"gpu NVIDIA H100 80GB HBM3 MIG: -", both[0]}, lines(onInstances(node.groups(share.NewOccupancy()))))
	node.update(t.Context())
	must.Eq(t, both, lines(onInstances(node.groups(share.NewOccupancy()))))
	must.Eq(t, map[int]string{0: "3g.40gb", 3: "1g.10gb"}, n.layout(t))
}

// An ignored instance is not offered, and counts as one of those declared.
func TestMIGShared_Ignored(t *testing.T) {
	n := newMIGNode(t, "3g.40gb", "1g.10gb")
	fingerprintOnce(t, n.plugin)
	n.options["gpu"] = gpuBlocks(sharedBlock("slice", nil, "3g.40gb", "1g.10gb"))
	n.options["ignored_gpu_ids"] = []string{n.named(t, "3g.40gb").UUID}
	n.plugin = newPlugin(t, n.library, n.options)
	must.Eq(t, []string{"slice NVIDIA H100 80GB HBM3 MIG 1g.10gb #0.3: ++++++++++"}, lines(onInstances(fingerprintOnce(t, n.plugin).Devices)))
}

// A slice that a declared instance cannot hold ends the start of an agent; of a model whose memory is not known, the instance
// says so.
func TestMIGShared_SliceTooLarge(t *testing.T) {
	n := newMIGNode(t)
	n.options["gpu"] = gpuBlocks(sharedBlock("slice", map[string]any{"slice_memory": "30GiB"}, "3g.40gb", "1g.10gb"))
	must.ErrorContains(t, n.plugin.SetConfig(pluginConfig(t, n.options)),
		"slice_memory is 30GiB, but an instance 1g.10gb has at most 10GiB: set it to less")

	unknown := gpus.H100_SXM5_80GB
	unknown.Name = "NVIDIA X1"
	n.library = onServer(t, dgxh100.NewWithGPUs(unknown))
	n.plugin = newPlugin(t, n.library, n.options)
	groups := onInstances(fingerprintOnce(t, n.plugin).Devices)
	must.Eq(t, []string{
		"slice NVIDIA X1 MIG 3g.40gb #0.0: +", "slice NVIDIA X1 MIG 1g.10gb #0.3: -",
	}, lines(groups))
	must.StrContains(t, groups[1].Devices[0].HealthDesc, "slice_memory is 30GiB, but the MIG instance 1g.10gb has only 10GiB for processes")
}

// Programs of no claim block slices of the instance that they are on, and of no other.
func TestMIGSharedSim_Unmanaged(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		n := &simNode{sim: simtest.New(t, "h100x8.conf")}
		n.demandNode = newDemandNode(t, nvml.New(n.sim.DriverRoot), map[string]any{
			"mode": "exclusive", "gpu": gpuBlocks(sharedBlock("slice", nil, "3g.40gb", "2g.20gb")),
		})
		n.look()
		must.Eq(t, []string{
			"slice NVIDIA H100 80GB HBM3 MIG 3g.40gb #0.0: " + strings.Repeat("+", 39), "slice NVIDIA H100 80GB HBM3 MIG 2g.20gb #0.4: " + strings.Repeat("+", 19),
		}, lines(onInstances(n.look())))
		var small string
		for _, instance := range n.gpus()[0].MIG.Instances {
			if instance.Profile == "2g.20gb" {
				small = instance.UUID
			}
		}
		n.compute(small)
		node := n.node()
		for range 2 { // it has to last
			node.update(t.Context())
			n.later(2 * unmanagedSettles)
		}
		occupancy := node.external.occupancy(t.Context())
		node.unmanaged.block(occupancy)
		groups := onInstances(node.groups(occupancy))
		must.Eq(t, 39, healthyCount(groups[0]))
		must.Eq(t, 0, healthyCount(groups[1]))
		must.StrContains(t, groups[1].Devices[0].HealthDesc, "of GPU memory used outside claims: process ")
	})
}

// An instance in use keeps its way to be shared until its tasks have ended, whichever way it is to be shared then.
func TestMIGShared_WaitsForTasks(t *testing.T) {
	n := newMIGNode(t)
	shared := gpuBlocks(sharedBlock("slice", map[string]any{"slice_memory": "5GiB"}, "3g.40gb", "1g.10gb"))
	n.options["gpu"] = shared
	n.plugin = newPlugin(t, n.library, n.options)
	fingerprintOnce(t, n.plugin)
	large, small := n.named(t, "3g.40gb"), n.named(t, "1g.10gb")
	waiting := func(instance nvml.MIGInstance) (reasons []string) {
		for _, group := range onInstances(fingerprintOnce(t, n.plugin).Devices) {
			for _, d := range group.Devices {
				if strings.HasPrefix(d.ID, instance.UUID) && !d.Healthy {
					reasons = append(reasons, d.HealthDesc)
				}
			}
		}
		return reasons
	}
	start := func(ids ...string) *claim.Claim {
		reservation, err := n.plugin.Reserve(ids)
		must.NoError(t, err)
		ledger := n.plugin.node.Load().ledger
		made, err := ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
		must.NoError(t, err)
		must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: made.ID, InitPID: startSleep(t).Process.Pid}))
		return made
	}
	sliced := start(large.UUID + "/slice-001")
	must.SliceEmpty(t, waiting(large))

	n.again(t, "3g.40gb", "1g.10gb")
	must.Eq(t, []string{"waits for claim " + sliced.ID + ", whose GPU is in mode slice (5GiB) until its task has ended"}, waiting(large))
	must.SliceEmpty(t, waiting(small))
	_, err := n.plugin.Reserve([]string{large.UUID})
	must.ErrorContains(t, err, sliced.ID)
	whole := start(small.UUID)

	n.options["gpu"] = shared
	n.plugin = newPlugin(t, n.library, n.options)
	must.SliceEmpty(t, waiting(large))
	must.Eq(t, slices.Repeat([]string{"waits for claim " + whole.ID + ", whose GPU is in mode mig until its task has ended"}, 2), waiting(small))
	_, err = n.plugin.Reserve([]string{small.UUID + "/slice-000"})
	must.ErrorContains(t, err, whole.ID)
}
