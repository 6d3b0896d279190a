package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/agent/page"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/internal/nodestats"
)

var legend = []page.Kind{
	{Name: kindRunning, Label: "allocation that runs"}, {Name: kindStarting, Label: "allocation that does not run"},
	{Name: kindOther, Label: "other: reserved in a namespace that you may not see"},
	{Name: kindUnknown, Label: "free or other: the node's statistics are not known"},
	{Name: kindUnavailable, Label: "not available"}, {Name: kindFree, Label: "free"},
}

// mapDetails are all nodes, and what there is in all.
type mapDetails struct {
	Nodes      []nodeRow
	GPUs       int
	Totals     []*total
	Namespaces []*usage
}

// nodeRow is a node with its GPUs as small bars.
type nodeRow struct {
	*node
	Page string
	Bars []page.Bar
}

// total is what there is of a type of devices of a model of GPUs.
type total struct {
	Type, Model                          string
	All, Mine, Other, Unknown, Out, Free int
	// Largest is the most that is free on one GPU.
	Largest int
}

// usage is what a namespace or a job has.
type usage struct {
	Name, Page          string
	Jobs, Allocs, Parts int
	memoryMiB           int64
	// unusedMiB is what its claims do not use now; measured is whether that is known of any.
	unusedMiB    int64
	measured     bool
	jobs, allocs map[string]bool
}

// Unused is what its claims do not use now, as far as the nodes' statistics say it.
func (u *usage) Unused() string {
	if !u.measured {
		return text.Unknown
	}
	return mebibytes(u.unusedMiB)
}

// Memory is what its devices have, as far as they have memory of their own.
func (u *usage) Memory() string { return ownMemory(u.memoryMiB) }

func (u *usage) add(p *part) {
	u.jobs[p.Alloc.JobID], u.allocs[p.Alloc.ID] = true, true
	u.Jobs, u.Allocs = len(u.jobs), len(u.allocs)
	u.Parts += p.Count
	u.memoryMiB += p.MemoryMiB
	if p.Limit > 0 {
		u.unusedMiB, u.measured = u.unusedMiB+max(0, p.Limit-p.Used), true
	}
}

func newMap(s *state) *mapDetails {
	d := &mapDetails{Namespaces: s.usages(func(a *api.AllocationListStub) (string, string) {
		return a.Namespace, "/namespace?" + url.Values{"name": {a.Namespace}}.Encode()
	})}
	totals := make(map[[2]string]*total)
	for _, n := range s.nodes {
		row := nodeRow{node: n, Page: nodePage(n.ID)}
		for _, g := range n.GPUs {
			d.GPUs++
			row.Bars = append(row.Bars, barOf(g, true))
			key := [2]string{g.Type, g.Model}
			if totals[key] == nil {
				totals[key] = &total{Type: g.Type, Model: g.Model}
				d.Totals = append(d.Totals, totals[key])
			}
			totals[key].add(g)
		}
		d.Nodes = append(d.Nodes, row)
	}
	slices.SortFunc(d.Totals, func(a, b *total) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Model, b.Model)) })
	return d
}

func (t *total) add(g *gpu) {
	t.All += g.Devices
	t.Mine += g.count(kindRunning) + g.count(kindStarting)
	t.Other += g.count(kindOther)
	t.Unknown += g.count(kindUnknown)
	t.Out += g.count(kindUnavailable)
	t.Free += g.Free()
	t.Largest = max(t.Largest, g.Free())
}

// usages sums up what allocations have, by the name that a function gives them, with a page of that name. "" leaves one out. Those
// with the most unused memory come first.
func (s *state) usages(of func(*api.AllocationListStub) (name, page string)) []*usage {
	all := make(map[string]*usage)
	for _, n := range s.nodes {
		for _, p := range n.Parts {
			name, address := of(p.Alloc)
			if name == "" {
				continue
			}
			if all[name] == nil {
				all[name] = &usage{Name: name, Page: address, jobs: make(map[string]bool), allocs: make(map[string]bool)}
			}
			all[name].add(p)
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *usage) int {
		return cmp.Or(cmp.Compare(b.unusedMiB, a.unusedMiB), cmp.Compare(a.Name, b.Name))
	})
}

func barOf(g *gpu, small bool) page.Bar {
	b := page.Bar{Label: g.Label, Percent: 100, Small: small}
	for _, p := range g.Parts {
		k := page.Block{Kind: p.Kind, Label: p.label(), Text: p.text()}
		if p.Alloc != nil {
			k.Page = page.JobPage(p.Alloc.Namespace, p.Alloc.JobID)
		}
		if p.Limit > 0 {
			k.Used = min(100, 100*float64(p.Used)/float64(p.Limit))
		}
		b.Add(100*float64(p.Count)/float64(g.Devices), k)
	}
	return b
}

// label is a short name of who has a part.
func (p *part) label() string {
	switch {
	case p.Alloc != nil:
		return p.Alloc.JobID
	case p.Kind == kindOther:
		return "other"
	case p.Kind == kindFree:
		return "free"
	case p.Kind == kindUnavailable:
		return "not available"
	}
	return "not known"
}

// text is all that there is to say of a part.
func (p *part) text() string {
	says := []string{fmt.Sprintf("%d of %d %s on %s", p.Count, p.GPU.Devices, p.GPU.Type, p.GPU.Label)}
	if p.Alloc != nil {
		says = append(says, "job "+p.Alloc.JobID+" in namespace "+p.Alloc.Namespace, "task "+p.Alloc.TaskGroup+"/"+p.Task, p.Alloc.ClientStatus)
	} else {
		says = append(says, p.label())
	}
	if p.Limit > 0 {
		says = append(says, mebibytes(p.Used)+" of "+mebibytes(p.Limit)+" used")
	}
	return strings.Join(append(says, p.Problems...), ", ")
}

// nodeDetails are all that is known of a node.
type nodeDetails struct {
	*node
	NomadPage string
	GPUs      []gpuDetails
	Rows      []row
	Facts     []page.Fact
}

type gpuDetails struct {
	*gpu
	Bar   page.Bar
	Says  string
	Notes []string
}

func (f *Fleet) newNodeDetails(n *node) *nodeDetails {
	d := &nodeDetails{node: n, NomadPage: page.NomadPage(f.NomadUI, "clients", n.ID), Rows: f.rowsOf(n.Parts), Facts: []page.Fact{
		{Name: "ID", Value: n.ID}, {Name: "Datacenter", Value: n.Datacenter}, {Name: "Node pool", Value: n.NodePool},
		{Name: "Status", Value: n.Status}, {Name: "Eligibility", Value: n.SchedulingEligibility}, {Name: "Nomad", Value: n.Version},
	}}
	if n.statistics != nil {
		d.Facts = append(d.Facts, page.Fact{Name: "Statistics of", Value: n.statistics.Taken.UTC().Format(page.TimeFormat)})
	}
	for _, g := range n.GPUs {
		details := gpuDetails{gpu: g, Bar: barOf(g, false), Says: g.says()}
		for _, p := range g.Parts {
			details.Notes = append(details.Notes, p.Problems...)
		}
		slices.Sort(details.Notes)
		details.Notes = slices.Compact(details.Notes)
		d.GPUs = append(d.GPUs, details)
	}
	return d
}

// says describes a GPU in a line.
func (g *gpu) says() string {
	says := []string{g.Model, "mode " + g.Mode, fmt.Sprintf("%d of %d %s free", g.Free(), g.Devices, g.Type)}
	if m := g.Measured; m != nil {
		for _, s := range []struct {
			what, unit string
			nodestats.Statistic
		}{{"busy", "%", m.Busy}, {"memory in use", "MiB", m.State}, {"", "°C", m.Temperature}, {"", "W", m.Power}} {
			if s.IntNumeratorVal != nil {
				says = append(says, strings.TrimSpace(s.what+" "+strconv.FormatInt(*s.IntNumeratorVal, 10)+" "+s.unit))
			}
		}
	}
	return strings.Join(says, ", ")
}

// row is a part of a GPU that an allocation has, in a table.
type row struct {
	*part
	Short, JobPage, NodePage, AllocPage string
	Memory, InUse                       string
}

func (f *Fleet) rowsOf(parts []*part) []row {
	var rows []row
	for _, p := range parts {
		r := row{
			part: p, Short: p.Alloc.ID[:min(8, len(p.Alloc.ID))], JobPage: page.JobPage(p.Alloc.Namespace, p.Alloc.JobID),
			NodePage: nodePage(p.Node.ID), AllocPage: page.NomadPage(f.NomadUI, "allocations", p.Alloc.ID),
			Memory: ownMemory(p.MemoryMiB), InUse: text.Unknown,
		}
		if p.Limit > 0 {
			r.InUse = mebibytes(p.Used)
		}
		rows = append(rows, r)
	}
	return rows
}

// jobsDetails are the jobs of a namespace.
type jobsDetails struct {
	Namespace string
	Jobs      []*usage
}

func newJobs(s *state, namespace string) *jobsDetails {
	return &jobsDetails{namespace, s.usages(func(a *api.AllocationListStub) (string, string) {
		if a.Namespace != namespace {
			return "", ""
		}
		return a.JobID, page.JobPage(namespace, a.JobID)
	})}
}

// jobDetails are the allocations of a job.
type jobDetails struct {
	Name, Namespace, NamespacePage, NomadPage string
	Rows                                      []row
}

func (f *Fleet) newJob(s *state, namespace, name string) *jobDetails {
	d := &jobDetails{
		Name: name, Namespace: namespace, NamespacePage: "/namespace?" + url.Values{"name": {namespace}}.Encode(),
		NomadPage: page.NomadPage(f.NomadUI, "jobs", name+"@"+namespace),
	}
	for _, n := range s.nodes {
		for _, p := range n.Parts {
			if p.Alloc.Namespace == namespace && p.Alloc.JobID == name {
				d.Rows = append(d.Rows, f.rowsOf([]*part{p})...)
			}
		}
	}
	return d
}

// hasJob reports whether a job has a page.
func (s *state) hasJob(namespace, job string) bool {
	return slices.ContainsFunc(s.nodes, func(n *node) bool {
		return slices.ContainsFunc(n.Parts, func(p *part) bool { return p.Alloc.Namespace == namespace && p.Alloc.JobID == job })
	})
}

func nodePage(id string) string { return "/node?" + url.Values{"id": {id}}.Encode() }

func mebibytes(mib int64) string { return text.Bytes(uint64(max(0, mib)) << 20) }

// ownMemory is the memory of devices, which is 0 if it is not theirs alone.
func ownMemory(mib int64) string {
	if mib == 0 {
		return text.Unknown
	}
	return mebibytes(mib)
}
