package fleet

import (
	"cmp"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/internal/nodestats"
)

// state is the cluster as a viewer may see it.
type state struct {
	nodes []*node
	// all, mine and known are what it is made of: the nodes, the allocations that the viewer may see, and statistics by node.
	all   []*api.NodeListStub
	mine  *sight
	known map[string]*nodestats.Node
}

// node is a node with GPUs.
type node struct {
	*api.NodeListStub
	GPUs []*gpu
	// Parts are those of its GPUs that allocations have.
	Parts []*part
	// statistics is nil if none have come yet.
	statistics *nodestats.Node
}

// gpu is a GPU, and who has which part of it.
type gpu struct {
	Label, Model, Mode string
	// MemoryMiB is all its memory; 0 if that is not known.
	MemoryMiB int64
	// Devices is how many devices of Nomad's it has, and Type what they are.
	Devices int
	Type    string
	Parts   []*part
	// Measured is what it measures; nil if that is not known.
	Measured *nodestats.Device
}

// A kind of parts is drawn as blocks of a node's page with this name.
const (
	kindRunning     = "running"   // of an allocation that runs
	kindStarting    = "reserved"  // of one that does not
	kindOther       = "outside"   // of one that the viewer may not see
	kindUnknown     = "dormant"   // of such a one, or free
	kindUnavailable = "unhealthy" // of nobody, and nobody gets it
	kindFree        = "free"
)

// part is a number of devices of a GPU with one fate.
type part struct {
	Kind  string
	Count int
	// Alloc and Task have it, on this Node and GPU; nil if it is of no allocation that the viewer may see.
	Alloc *api.AllocationListStub
	Task  string
	Node  *node
	GPU   *gpu
	// MemoryMiB is what the devices have; 0 if they have no memory of their own. Used and Limit are those of its claims; Limit is 0
	// if they are not known.
	MemoryMiB, Used, Limit int64
	// Problems are what Nomad says of the devices.
	Problems []string
}

// Free is how many devices a new allocation can get.
func (g *gpu) Free() int { return g.count(kindFree) }

func (g *gpu) count(kind string) int {
	sum := 0
	for _, p := range g.Parts {
		if p.Kind == kind {
			sum += p.Count
		}
	}
	return sum
}

// Problem says why Nomad places nothing new on the node; empty if it does.
func (n *node) Problem() string {
	switch {
	case n.Status != api.NodeStatusReady:
		return "The node is " + n.Status + "."
	case n.Drain:
		return "The node drains."
	case n.SchedulingEligibility == api.NodeSchedulingIneligible:
		return "The node is ineligible for new allocations."
	}
	return ""
}

// NoStatistics says why the node has no statistics; empty if it has.
func (n *node) NoStatistics() string {
	switch {
	case n.statistics == nil && n.Status == api.NodeStatusReady:
		return "Its statistics have not come yet."
	case n.statistics != nil && n.statistics.Err != nil:
		return "Its statistics are not known: " + n.statistics.Err.Error()
	}
	return ""
}

// hasGPUs reports whether a node has GPUs that Tranche's device plugin shares.
func hasGPUs(n *api.NodeListStub) bool {
	return n.NodeResources != nil && slices.ContainsFunc(n.NodeResources.Devices, isTranches)
}

// isTranches tells Tranche's device groups from those of nomad-device-nvidia, which have the same names.
func isTranches(g *api.NodeDeviceResource) bool {
	return g.Vendor == "nvidia" && g.Attributes["mode"] != nil && g.Attributes["isolation"] != nil
}

// place is a device on a node: IDs are unique on their node only.
type place struct{ node, device string }

// holder is who has a device.
type holder struct {
	alloc *api.AllocationListStub
	task  string
}

// newState joins what a viewer may see.
func newState(all []*api.NodeListStub, mine *sight, known map[string]*nodestats.Node) *state {
	s := &state{all: all, mine: mine, known: known}
	holders := holdersOf(mine.allocs)
	for _, stub := range all {
		n := &node{NodeListStub: stub, statistics: known[stub.ID]}
		n.addGPUs(holders)
		s.nodes = append(s.nodes, n)
	}
	slices.SortFunc(s.nodes, func(a, b *node) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return s
}

func holdersOf(allocs []*api.AllocationListStub) map[place]holder {
	holders := make(map[place]holder)
	for _, alloc := range allocs {
		if alloc.AllocatedResources == nil {
			continue
		}
		for task, resources := range alloc.AllocatedResources.Tasks {
			for _, device := range resources.Devices {
				for _, id := range device.DeviceIDs {
					holders[place{alloc.NodeID, id}] = holder{alloc, task}
				}
			}
		}
	}
	return holders
}

// addGPUs adds the node's GPUs: devices with the same PCI address are of the same one.
func (n *node) addGPUs(holders map[place]holder) {
	byAddress := make(map[string]*gpu)
	var addresses []string
	for _, group := range n.NodeResources.Devices {
		if !isTranches(group) {
			continue
		}
		for _, device := range group.Instances {
			address := group.ID()
			if device.Locality != nil && device.Locality.PciBusID != "" {
				address = device.Locality.PciBusID
			}
			g := byAddress[address]
			if g == nil {
				g = newGPU(group, address)
				byAddress[address] = g
				addresses = append(addresses, address)
			}
			n.addDevice(g, group, device, holders[place{n.ID, device.ID}])
		}
	}
	slices.Sort(addresses)
	for _, address := range addresses {
		g := byAddress[address]
		g.sort()
		n.GPUs = append(n.GPUs, g)
		for _, p := range g.Parts {
			if p.Alloc != nil {
				n.Parts = append(n.Parts, p)
			}
		}
	}
}

func newGPU(group *api.NodeDeviceResource, address string) *gpu {
	g := &gpu{
		Label: "GPU " + address, Model: stringAttribute(group, "model"), Mode: stringAttribute(group, "mode"), Type: group.Vendor + "/" + group.Type,
		MemoryMiB: intAttribute(group, "memory"),
	}
	if index := group.Attributes["index"]; index != nil {
		g.Label = "GPU " + index.String()
	}
	if g.Mode == "mig" {
		g.MemoryMiB = 0 // the attribute is an instance's
	}
	return g
}

// addDevice adds a device to the part that it belongs to.
func (n *node) addDevice(g *gpu, group *api.NodeDeviceResource, device *api.NodeDevice, has holder) {
	var measured *nodestats.Device
	if n.statistics != nil {
		measured = n.statistics.Devices[device.ID]
	}
	p := g.part(n.kindOf(device, has, measured), has)
	p.Node, p.GPU = n, g
	p.Count++
	p.MemoryMiB += memoryOf(group)
	g.Devices++
	if device.HealthDescription != "" && !slices.Contains(p.Problems, device.HealthDescription) {
		p.Problems = append(p.Problems, device.HealthDescription)
	}
	if measured == nil {
		return
	}
	if memory := measured.Memory; has.alloc != nil && memory.IntNumeratorVal != nil && memory.IntDenominatorVal != nil {
		p.Used += *memory.IntNumeratorVal
		p.Limit += *memory.IntDenominatorVal
	}
	if measured.Measured() && g.Measured == nil {
		g.Measured = measured
	}
}

// kindOf says what the fate of a device is.
func (n *node) kindOf(device *api.NodeDevice, has holder, measured *nodestats.Device) string {
	switch {
	case has.alloc != nil && has.alloc.ClientStatus == api.AllocClientStatusRunning:
		return kindRunning
	case has.alloc != nil:
		return kindStarting
	case !device.Healthy:
		return kindUnavailable
	case measured.Claimed():
		return kindOther
	case n.Problem() != "":
		return kindUnavailable
	case n.statistics == nil || n.statistics.Err != nil:
		return kindUnknown
	}
	return kindFree
}

// part returns the part of a kind that a task has.
func (g *gpu) part(kind string, has holder) *part {
	for _, p := range g.Parts {
		if p.Kind == kind && p.Alloc == has.alloc && p.Task == has.task {
			return p
		}
	}
	p := &part{Kind: kind, Alloc: has.alloc, Task: has.task}
	g.Parts = append(g.Parts, p)
	return p
}

// kinds are the kinds of parts, in the order in which they are drawn.
var kinds = []string{kindRunning, kindStarting, kindOther, kindUnknown, kindUnavailable, kindFree}

func (g *gpu) sort() {
	slices.SortStableFunc(g.Parts, func(a, b *part) int { return slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind) })
}

// memoryOf is the memory of one of a group's devices; 0 if several share it.
func memoryOf(group *api.NodeDeviceResource) int64 {
	switch {
	case group.Attributes["slice_memory"] != nil:
		return intAttribute(group, "slice_memory")
	case group.Attributes["replicas"] != nil:
		return 0
	}
	return intAttribute(group, "memory")
}

func stringAttribute(group *api.NodeDeviceResource, name string) string {
	if a := group.Attributes[name]; a != nil && a.StringVal != nil {
		return *a.StringVal
	}
	return ""
}

func intAttribute(group *api.NodeDeviceResource, name string) int64 {
	if a := group.Attributes[name]; a != nil && a.IntVal != nil {
		return *a.IntVal
	}
	return 0
}
