package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// demandNode is a plugin on GPUs whose instances are made on demand.
type demandNode struct {
	t       *testing.T
	library *nvml.Library
	options map[string]any
	plugin  *Plugin
}

func newDemandNode(t *testing.T, library *nvml.Library, options map[string]any) *demandNode {
	t.Helper()
	all := map[string]any{"mode": "mig", "fingerprint_period": "1h"}
	maps.Copy(all, options)
	n := &demandNode{t: t, library: library, options: testOptions(t, all)}
	n.restart()
	return n
}

// restart has another plugin take over, as after a restart of the agent.
func (n *demandNode) restart() {
	n.t.Helper()
	n.plugin = newPlugin(n.t, n.library, n.options)
}

func (n *demandNode) node() *node { return n.plugin.node.Load() }

// look has the plugin query the GPUs and returns what it would publish.
func (n *demandNode) look() []*ndevice.DeviceGroup {
	n.t.Helper()
	node := n.node()
	node.ledger.ReleaseEnded(n.t.Context())
	must.NoError(n.t, node.scanner.scan(n.t.Context()))
	for range 2 {
		if !node.layout.Apply(n.t.Context(), node.inventory.list(), node.inventory.setWaits) {
			break
		}
		must.NoError(n.t, node.scanner.scan(n.t.Context()))
	}
	node.onDemand.Reconcile(n.t.Context(), node.inventory.list())
	return node.groups(node.external.occupancy(n.t.Context()))
}

// gpus are what the driver says of the GPUs.
func (n *demandNode) gpus() []nvml.GPU {
	n.t.Helper()
	found, err := n.library.Read(n.t.Context())
	must.NoError(n.t, err)
	return found.GPUs
}

// instances are those of a GPU by the driver, as profile:slot.
func (n *demandNode) instances(gpu int) []string {
	n.t.Helper()
	all := []string{}
	for _, i := range n.gpus()[gpu].MIG.Instances {
		all = append(all, fmt.Sprintf("%s:%d", i.Profile, i.Start))
	}
	slices.Sort(all)
	return all
}

// claim is the claim of a reservation.
func (n *demandNode) claim(reservation *ndevice.ContainerReservation) *claim.Claim {
	n.t.Helper()
	made, err := n.node().ledger.Lookup(n.t.Context(), tokenOf(n.t, reservation.Envs))
	must.NoError(n.t, err)
	return made
}

// reserve reserves slices as Nomad does: any that are healthy and free.
func (n *demandNode) reserve(g nvml.GPU, numbers ...int) *claim.Claim {
	n.t.Helper()
	reservation, err := n.plugin.Reserve(sliceIDs(g, numbers...))
	must.NoError(n.t, err)
	c := n.claim(reservation)
	must.Eq(n.t, c.GPU.UUID, reservation.Envs[claim.VisibleDevices])
	return c
}

// start has a container take up a claim; end ends it.
func (n *demandNode) start(c *claim.Claim) (end func()) {
	n.t.Helper()
	pid, kill := startInit(n.t)
	container := claim.Container{Runtime: "test", ID: fmt.Sprint("c", pid), InitPID: pid}
	must.NoError(n.t, n.node().ledger.Bind(n.t.Context(), c.ID, container))
	return func() {
		n.t.Helper()
		kill()
		must.NoError(n.t, n.node().ledger.Release(n.t.Context(), c.ID, container.ID))
	}
}

// healthyOf are the numbers of a group's healthy slices, in order.
func healthyOf(group *ndevice.DeviceGroup) []int {
	numbers := []int{}
	for _, d := range group.Devices {
		if _, number, _ := claim.ParseSliceName(d.ID); d.Healthy {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// upTo are the numbers from 0 below n.
func upTo(n int) []int {
	numbers := []int{}
	for i := range n {
		numbers = append(numbers, i)
	}
	return numbers
}

// What Nomad sees of a GPU whose instances are made on demand, and what it gets. The servers' tables of profiles are not
// quite NVIDIA's.
func TestDemand(t *testing.T) {
	for name, tc := range map[string]struct {
		server  *server.Server
		slice   string
		slices  int
		count   int
		profile string
	}{
		"A100": {dgxa100.New(), "5GiB", 7, 3, "3g.20gb"},
		"H100": {dgxh100.New(), "1GiB", 80, 11, "1g.20gb"},
		"H200": {dgxh200.New(), "1GiB", 141, 18, "1g.35gb"},
		"B200": {dgxb200.New(), "10GiB", 18, 4, "1g.45gb"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newDemandNode(t, onServer(t, tc.server), map[string]any{"slice_memory": tc.slice})
			response := next(t, fingerprint(t, n.plugin))
			must.Len(t, 8, response.Devices)
			group := response.Devices[3]
			must.NoError(t, group.Validate())
			must.Eq(t, "slice", group.Type)
			must.Eq(t, n.gpus()[3].Name+" #3", group.Name)
			must.Eq(t, structs.NewStringAttribute("hardware"), group.Attributes["isolation"])
			must.Eq(t, structs.NewStringAttribute("mig"), group.Attributes["mode"])
			must.Eq(t, structs.NewIntAttribute(int64(tc.slices), ""), group.Attributes["slices"])
			must.Eq(t, upTo(tc.slices), healthyOf(group))

			g := n.gpus()[3]
			c := n.reserve(g, upTo(tc.count)...)
			must.Eq(t, claim.ModeMIG, c.Mode)
			must.False(t, c.Limited())
			must.Eq(t, g.UUID, c.PhysicalGPU())
			must.Eq(t, tc.profile, c.MIG.Profile)
			instance := n.gpus()[3].MIG.Instances[0]
			must.Eq(t, []string{instance.UUID, instance.Name}, []string{c.GPU.UUID, c.GPU.Name})
			must.Eq(t, []int{instance.GPUInstance, instance.ComputeInstance, instance.Start, instance.Size},
				[]int{c.MIG.GPUInstance, c.MIG.ComputeInstance, c.MIG.Start, c.MIG.Size})
			must.Eq(t, instance.MemoryBytes, c.LimitBytes)
			must.Len(t, 1, n.instances(3))
			must.SliceEmpty(t, n.instances(2))

			n.restart() // Nomad may reserve before the first fingerprint
			other := n.reserve(n.gpus()[2], 0)
			must.Eq(t, 2, other.GPU.Index)
		})
	}
}

// The room that there is in sum is not what an instance can have: A 1g in each half of a GPU leaves no half.
func TestDemand_Fragmentation(t *testing.T) {
	n := newDemandNode(t, onServer(t, dgxh100.New()), map[string]any{"slice_memory": "9GiB"})
	must.Len(t, 8, n.look())
	g := n.gpus()[0]
	must.Eq(t, upTo(8), healthyOf(n.look()[0]), must.Sprint("7g.80gb has 79.25 GiB"))
	var ends []func()
	var places []string
	for i := range 7 {
		c := n.reserve(g, i)
		ends = append(ends, n.start(c))
		places = append(places, fmt.Sprintf("%s:%d", c.MIG.Profile, c.MIG.Start))
	}
	must.Eq(t, 7, len(n.instances(0)))
	group := n.look()[0]
	must.Eq(t, upTo(7), healthyOf(group))
	must.Eq(t, "MIG has no room for an instance beside those in use", group.Devices[7].HealthDesc)
	must.Eq(t, structs.NewIntAttribute(7, ""), group.Attributes["healthy_slices"])

	// Those in slots 1 and 5 stay.
	stay := []int{slices.Index(places, "1g.10gb:1"), slices.Index(places, "1g.10gb:5")}
	for i, end := range ends {
		if !slices.Contains(stay, i) {
			end()
		}
	}
	group = n.look()[0]
	healthy := healthyOf(group)
	must.Len(t, 2+2, healthy, must.Sprint("5 instances of 9 GiB ended, but an instance of more than 2 slices has no place"))
	must.SliceContainsSubset(t, healthy, append([]int{7}, stay...), must.Sprint("a slice of no claim comes before those of dormant ones"))
	for _, d := range group.Devices {
		if !d.Healthy {
			must.Eq(t, "MIG has no room for an instance of more than 2 slices beside those in use", d.HealthDesc)
		}
	}
	_, err := n.plugin.Reserve(sliceIDs(g, others(stay, 8)[:3]...))
	must.ErrorContains(t, err, "MIG has no room on the GPU NVIDIA H100 80GB HBM3 #0 ("+g.UUID+") for an instance with the memory of "+
		"3 slices (27GiB), but for 2 slices at most, beside what is in use by claim ")
	must.Eq(t, codes.Aborted, status.Code(err))
	must.Len(t, 7, n.instances(0), must.Sprint("nothing was destroyed for nothing"))
	c := n.reserve(g, others(stay, 8)[:2]...)
	must.Eq(t, "1g.20gb", c.MIG.Profile)
}

// others are the numbers below n without some.
func others(without []int, n int) []int {
	return slices.DeleteFunc(upTo(n), func(i int) bool { return slices.Contains(without, i) })
}

// A GPU on which nothing can be made shows one slice, with the reason.
func TestDemand_Problem(t *testing.T) {
	h200 := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(h200), map[string]any{"mode": "mig"})
	group := next(t, fingerprint(t, p)).Devices[0]
	must.Eq(t, []string{"slice NVIDIA H200 #0: -"}, lines([]*ndevice.DeviceGroup{group}))
	must.Eq(t, "the GPU has no MIG: share it in another mode", group.Devices[0].HealthDesc)
	_, err := p.Reserve(sliceIDs(h200, 0))
	must.ErrorContains(t, err, "not devices of this node's GPUs")

	options := testOptions(t, map[string]any{"gpu": gpuBlocks(migBlock("index:0"))})
	p = newPlugin(t, nvmltest.New(h200), options)
	must.ErrorContains(t, p.SetConfig(pluginConfig(t, options)), `gpu "index:0": the GPU 0, NVIDIA H200 (`+h200.UUID+
		`), cannot be in mode "mig": it has no MIG`)

	n := newDemandNode(t, onServer(t, dgxa100.New()), map[string]any{"slice_memory": "50GiB"})
	group = n.look()[0]
	must.Len(t, 1, group.Devices)
	must.StrContains(t, group.Devices[0].HealthDesc, "slice_memory is 50GiB, but the largest MIG instance of the GPU has only ")
	must.ErrorContains(t, n.plugin.SetConfig(pluginConfig(t, n.options)), `cannot be in mode "mig": slice_memory is 50GiB`)
	n.options["slice_memory"] = "5GiB"
	must.NoError(t, n.plugin.SetConfig(pluginConfig(t, n.options)))
}

// More than a task may have, slices of two GPUs, and of GPUs that are shared in other ways.
func TestDemand_BadReservations(t *testing.T) {
	n := newDemandNode(t, onServer(t, dgxh100.New()), map[string]any{
		"slice_memory": "10GiB", "max_slices": 2, "gpu": gpuBlocks(migBlock("index:1", "7g.80gb")),
	})
	groups := n.look()
	a, b := n.gpus()[0], n.gpus()[2]
	declared := n.gpus()[1].MIG.Instances[0].UUID
	must.SliceContains(t, lines(groups), "gpu NVIDIA H100 80GB HBM3 MIG 7g.80gb: +")
	for want, ids := range map[string][]string{
		"3 slices are more than one task may have": sliceIDs(a, 0, 1, 2),
		"the reservation names slices of 2 GPUs":   append(sliceIDs(a, 0), sliceIDs(b, 0)...),
		"names slices of 2 GPUs: " + declared:      append([]string{declared}, sliceIDs(b, 0)...),
		"not devices of this node's GPUs":          {b.UUID},
	} {
		_, err := n.plugin.Reserve(ids)
		must.ErrorContains(t, err, want)
		must.Eq(t, codes.FailedPrecondition, status.Code(err))
	}
	must.SliceEmpty(t, claimsOf(t, n.plugin))
	_, err := n.plugin.Reserve([]string{declared})
	must.NoError(t, err)
	must.True(t, strings.HasPrefix(claimsOf(t, n.plugin)[0].GPU.UUID, "MIG-"))
}

// The room that a reservation leaves and that the end of a task frees is published at once; the period has nothing to do
// with it.
func TestDemand_Woken(t *testing.T) {
	n := newDemandNode(t, onServer(t, dgxh100.New()), map[string]any{"slice_memory": "10GiB"})
	stream := fingerprint(t, n.plugin)
	healthy := func() int { return len(healthyOf(next(t, stream).Devices[0])) }
	must.Eq(t, 8, healthy())
	reservation, err := n.plugin.Reserve(sliceIDs(n.gpus()[0], 0))
	must.NoError(t, err)
	must.Eq(t, 1+4, healthy())
	end := n.start(n.claim(reservation))
	quiet(t, stream)
	end()
	must.Eq(t, 8, healthy())
}

// As long as the driver does not list the instances, what was published before remains, and at first that
// nothing is known.
func TestDemand_QueryFails(t *testing.T) {
	library := &failingLibrary{Library: onServer(t, dgxh100.New())}
	n := newDemandNode(t, library.Library, map[string]any{"slice_memory": "10GiB"})
	n.node().driver.Partitioner = library
	library.err = errors.New("no answer")
	group := n.look()[0]
	must.SliceEmpty(t, healthyOf(group))
	must.Eq(t, "the MIG instances of the GPU are not known: no answer", group.Devices[0].HealthDesc)
	_, err := n.plugin.Reserve(sliceIDs(n.gpus()[0], 0))
	must.EqError(t, err, "no answer")
	must.SliceEmpty(t, claimsOf(t, n.plugin))
	library.err = nil
	must.Len(t, 8, healthyOf(n.look()[0]))
	library.err = errors.New("no answer")
	must.Len(t, 8, healthyOf(n.look()[0]))
}

// failingLibrary does not list the instances of a GPU, if there is an error.
type failingLibrary struct {
	*nvml.Library
	err error
}

func (l *failingLibrary) ReadMIG(ctx context.Context, uuid string) (nvml.MIG, error) {
	if l.err != nil {
		return nvml.MIG{}, l.err
	}
	return l.Library.ReadMIG(ctx, uuid)
}

// Slices of a container that lives are refused, and its instance stays.
func TestDemand_Held(t *testing.T) {
	n := newDemandNode(t, onServer(t, dgxh100.New()), map[string]any{"slice_memory": "10GiB"})
	n.look()
	g := n.gpus()[0]
	c := n.reserve(g, 0)
	end := n.start(c)
	before := n.gpus()[0].MIG.Instances
	_, err := n.plugin.Reserve(sliceIDs(g, 0, 1))
	var held *claim.HeldError
	must.True(t, errors.As(err, &held), must.Sprint(err))
	must.Eq(t, codes.Aborted, status.Code(err))
	must.Eq(t, before, n.gpus()[0].MIG.Instances)
	must.Len(t, 1, claimsOf(t, n.plugin))
	end()
	must.Eq(t, "1g.20gb", n.reserve(g, 0, 1).MIG.Profile)
	n.look()
	must.Eq(t, 1, len(n.instances(0)))
}
