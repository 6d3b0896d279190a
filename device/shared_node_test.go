package device

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
)

// modeCase is a mode in which an operator shares an H100, and the expected outcome.
type modeCase struct {
	name    string
	mode    claim.Mode
	options map[string]any
	// instances is the mode of claims on its MIG instances, where it is another.
	instances claim.Mode
	// offers is how many devices Nomad sees, by type, and isolation their attribute.
	offers    map[string]int
	isolation string
	// takes is how many of them a job reserves, and limit what its claim says that it has of the memory; 0 is what the GPU
	// or the instance has.
	takes int
	limit uint64
}

// allModes are all of them. A DGX H100 has MIG on all its GPUs.
var allModes = []modeCase{
	{
		name: "slice", mode: claim.ModeSlice, options: map[string]any{"slice_memory": "10GiB"}, isolation: share.IsolationMemory,
		offers: map[string]int{share.SliceType: 8}, takes: 2, limit: 20 << 30,
	},
	{
		name: "exclusive", mode: claim.ModeExclusive, options: map[string]any{"mode": "exclusive"}, isolation: share.IsolationExclusive,
		offers: map[string]int{share.GPUType: 1}, takes: 1,
	},
	{
		name: "timeslice", mode: claim.ModeTimeslice, options: map[string]any{"mode": "timeslice", "replicas": 3}, isolation: share.IsolationNone,
		offers: map[string]int{"timeslice": 3}, takes: 1,
	},
	{
		name: "mig", mode: claim.ModeMIG, isolation: share.IsolationHardware,
		options: map[string]any{"mode": "mig", "mig": []any{map[string]any{"profiles": []any{"3g.40gb", "2g.20gb", "1g.10gb"}}}},
		offers:  map[string]int{share.GPUType: 3}, takes: 1,
	},
	{
		name: "mig in slices", mode: claim.ModeMIG, instances: claim.ModeSlice, isolation: share.IsolationMemory,
		options: map[string]any{"mode": "mig", "slice_memory": "5GiB", "mig": []any{map[string]any{
			"profiles": []any{"3g.40gb", "2g.20gb", "1g.10gb"}, "mode": "slice",
		}}},
		offers: map[string]int{share.SliceType: 14}, takes: 2, limit: 10 << 30,
	},
	{
		name: "mig on demand", mode: claim.ModeMIG, isolation: share.IsolationHardware,
		options: map[string]any{"mode": "mig", "slice_memory": "10GiB"},
		offers:  map[string]int{share.SliceType: 8}, takes: 2,
	},
	{
		name: "mps", mode: claim.ModeMPS, isolation: share.IsolationMPS,
		options: map[string]any{"mode": "mps", "slice_memory": "10GiB"},
		offers:  map[string]int{share.SliceType: 8}, takes: 2, limit: 20 << 30,
	},
}

// onDemand reports whether MIG instances are created when slices are reserved.
func (w *modeCase) onDemand() bool {
	return w.mode == claim.ModeMIG && w.offers[share.SliceType] > 0 && w.instances == ""
}

// block is a gpu block that shares GPUs so.
func (w *modeCase) block(gpus string) map[string]any {
	block := maps.Clone(w.options)
	block["gpu"] = gpus
	return block
}

// sharedNode is a plugin on a mock DGX H100, which keeps its GPUs, its ledger, their instances and daemons over restarts.
type sharedNode struct {
	library *nvml.Library
	daemons *fakeManager
	options map[string]any
	plugin  *Plugin
	gpus    []nvml.GPU
}

func newSharedNode(t *testing.T) *sharedNode {
	t.Helper()
	n := &sharedNode{library: onServer(t, dgxh100.New()), daemons: newFakeManager(), options: testOptions(t, nil)}
	found, err := n.library.Read(t.Context())
	must.NoError(t, err)
	n.gpus = found.GPUs
	return n
}

// restart is the plugin as an agent starts it with these gpu blocks.
func (n *sharedNode) restart(t *testing.T, blocks ...map[string]any) {
	t.Helper()
	n.options["gpu"] = gpuBlocks(blocks...)
	n.plugin = newPlugin(t, n.library, n.options)
	n.plugin.node.Load().daemons.Manager = n.daemons
}

// offered is what Nomad sees of a GPU.
type offered struct {
	types     map[string]int
	isolation []string
	healthy   []string // IDs
	reasons   []string // why the others are not
}

// offeredOf sorts what Nomad sees of a GPU out of all groups, by where the devices are.
func offeredOf(groups []*ndevice.DeviceGroup, g nvml.GPU) offered {
	all := offered{types: map[string]int{}}
	for _, group := range groups {
		for _, d := range group.Devices {
			if d.HwLocality.PciBusID != g.PCIBusID {
				continue
			}
			all.types[group.Type]++
			all.isolation = append(all.isolation, *group.Attributes["isolation"].String)
			if d.Healthy {
				all.healthy = append(all.healthy, d.ID)
			} else {
				all.reasons = append(all.reasons, d.HealthDesc)
			}
		}
	}
	all.isolation, all.reasons = distinct(all.isolation), distinct(all.reasons)
	return all
}

func distinct(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// mustOffer checks that Nomad sees a GPU as one that is shared so, and may give out all of it.
func (w *modeCase) mustOffer(t *testing.T, seen offered) {
	t.Helper()
	must.Eq(t, w.offers, seen.types)
	must.Eq(t, []string{w.isolation}, seen.isolation)
	must.SliceEmpty(t, seen.reasons)
}

// reserve takes what a job takes of a GPU that is shared so, and returns the claim and its token.
func (n *sharedNode) reserve(t *testing.T, w *modeCase, g nvml.GPU, seen offered) (*claim.Claim, claim.Token) {
	t.Helper()
	reservation, err := n.plugin.Reserve(seen.healthy[:w.takes])
	must.NoError(t, err)
	token := tokenOf(t, reservation.Envs)
	made, err := n.plugin.node.Load().ledger.Lookup(t.Context(), token)
	must.NoError(t, err)
	if w.instances == "" {
		must.Eq(t, w.mode, made.Mode)
		must.Eq(t, g.UUID, made.PhysicalGPU())
	} else {
		must.Eq(t, w.instances, made.Mode)
		must.StrHasPrefix(t, "MIG-", made.GPU.UUID)
	}
	must.Eq(t, slices.Sorted(slices.Values(seen.healthy[:w.takes])), made.Slices)
	switch {
	case w.limit > 0:
		must.Eq(t, w.limit, made.LimitBytes)
	case w.mode == claim.ModeMIG:
		must.Less(t, g.MemoryBytes, made.LimitBytes, must.Sprint("an instance has less than its GPU"))
	default:
		must.Eq(t, g.MemoryBytes, made.LimitBytes)
	}
	return made, token
}

// startsWith reports whether there are texts and all have a prefix.
func startsWith(prefix string, texts []string) bool {
	return len(texts) > 0 && !slices.ContainsFunc(texts, func(text string) bool { return !strings.HasPrefix(text, prefix) })
}
