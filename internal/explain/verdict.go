package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// missingDevices is how Nomad names nodes that it leaves out since none of their device groups meets a device block, be it free
// or not.
const missingDevices = "missing devices"

// judge says what becomes of the group. Whether it gets a place is Nomad's to decide: failed is its answer, nil if it finds one.
func (g *Group) judge(failed *api.AllocationMetric, runsOn []string, devices []Device, names []string) {
	if failed == nil {
		g.Verdict, g.Reason = Fits, "Nomad has a place for it now"
		if len(runsOn) > 0 {
			g.Verdict, g.Reason = Runs, "it runs on "+strings.Join(slices.Compact(runsOn), ", ")
		}
		return
	}
	g.Scheduler = &Scheduler{Evaluated: failed.NodesEvaluated, Filtered: failed.ConstraintFiltered, Exhausted: failed.DimensionExhausted}
	tooMuch := cmp.Or(g.tooLarge(devices, names), g.tooMany(devices))
	switch {
	case failed.NodesEvaluated == 0:
		g.Verdict, g.Reason = Never, fmt.Sprintf("no node is eligible: see the job's datacenters, its node pool %q, and nomad node status",
			failed.NodePool)
	case tooMuch != "":
		g.Verdict, g.Reason = Never, tooMuch
	case failed.NodesExhausted == 0 && len(failed.QuotaExhausted) == 0:
		g.Verdict, g.Reason = Never, g.filtered(failed)
	default:
		g.Verdict, g.Reason = Waits, g.exhausted(failed, devices)
	}
	if len(runsOn) > 0 {
		g.Reason += fmt.Sprintf("; %d of its allocations run", len(runsOn))
	}
}

// tooLarge names a request that no GPU can meet, be it free; "" if there is none. names are those that device blocks can have.
func (g *Group) tooLarge(devices []Device, names []string) string {
	for _, r := range g.Requests {
		most, found := 0, false
		for _, d := range devices {
			if d.matches(r.Device) {
				most, found = max(most, d.Total), true
			}
		}
		if !found {
			there := "no node has any device"
			if len(names) > 0 {
				there = "the nodes have " + strings.Join(names, ", ")
			}
			return fmt.Sprintf("task %s requests %s, which no node has (%s): see nomad node status, and tranche doctor on the node",
				r.Task, r.Device, there)
		}
		if r.Count > most {
			return fmt.Sprintf("task %s requests %d of %s in one device block, and no GPU has more than %d: all of a block are on one GPU",
				r.Task, r.Count, r.Device, most)
		}
	}
	return ""
}

// tooMany says what all requests of an allocation, or all allocations together, exceed even if everything were free; "" if they do
// not.
func (g *Group) tooMany(devices []Device) string {
	asked := map[string]int{}
	for _, r := range g.Requests {
		asked[r.Device] += r.Count
	}
	for _, device := range slices.Sorted(maps.Keys(asked)) {
		onNode, most := map[string]int{}, 0
		for _, d := range devices {
			if d.matches(device) {
				onNode[d.Node] += d.Total
				most = max(most, onNode[d.Node])
			}
		}
		if asked[device] > most {
			return fmt.Sprintf("its tasks request %d of %s in all, and no node has more than %d", asked[device], device, most)
		}
	}
	for _, r := range g.Requests {
		places := 0
		for _, d := range devices {
			if d.matches(r.Device) {
				places += d.Total / max(r.Count, 1)
			}
		}
		if g.count > places {
			return fmt.Sprintf("it has a count of %d, each with %d of %s on one GPU, and all nodes have room for %d of them", g.count, r.Count,
				r.Device, places)
		}
	}
	return ""
}

// filtered is why Nomad leaves out all nodes.
func (g *Group) filtered(failed *api.AllocationMetric) string {
	reason := "Nomad leaves out all nodes: " + counted(failed.ConstraintFiltered)
	if failed.ConstraintFiltered[missingDevices] > 0 {
		reason += "; their healthy devices are too few, or meet no constraint of the device block"
	}
	return reason
}

// exhausted is what is too little at the moment.
func (g *Group) exhausted(failed *api.AllocationMetric, devices []Device) string {
	if len(failed.QuotaExhausted) > 0 {
		return "the namespace's quota is used up: " + strings.Join(failed.QuotaExhausted, ", ")
	}
	reason := "too little is free: " + counted(failed.DimensionExhausted)
	for _, r := range g.Requests {
		most := 0
		for _, d := range devices {
			if d.matches(r.Device) {
				most = max(most, d.Free)
			}
		}
		if most < r.Count {
			reason += fmt.Sprintf("; task %s requests %d of %s on one GPU, and at most %d are free on one", r.Task, r.Count, r.Device, most)
		}
	}
	return reason
}

// counted lists reasons with the number of nodes that each is true of.
func counted(reasons map[string]int) string {
	var all []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		unit := "nodes"
		if reasons[reason] == 1 {
			unit = "node"
		}
		all = append(all, fmt.Sprintf("%s (%d %s)", reason, reasons[reason], unit))
	}
	return strings.Join(all, ", ")
}
