package page

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/claim"
)

// row is a claim in a table.
type row struct {
	*monitor.Claim
	Name              string
	Limit, Used, Peak string
	// UsedPercent and PeakPercent are parts of the limit.
	UsedPercent, PeakPercent float64
	Busy, Processes          string
	Refused, Uncounted       string
	Activity                 string
	// Unused is in GiB-hours of the last day.
	Unused string
	// JobPage is the address of the job's page; empty if the claim is no job's.
	JobPage string
}

// rowsOf returns the rows of claims, those with the most unused memory first, and the rows of dormant ones, which have nothing of a
// GPU.
func rowsOf(s *monitor.Snapshot, claims []*monitor.Claim) (rows, dormant []row) {
	for _, c := range slices.SortedStableFunc(slices.Values(claims), s.CompareUnused) {
		if c.State == claim.StateDormant {
			dormant = append(dormant, rowOf(s, c))
		} else {
			rows = append(rows, rowOf(s, c))
		}
	}
	return rows, dormant
}

func rowOf(s *monitor.Snapshot, c *monitor.Claim) row {
	r := row{Claim: c, Name: nameOf(c), Limit: "none", Used: text.Unknown, Peak: text.OptionalBytes(c.PeakBytes()), Processes: text.Unknown,
		Refused: text.Unknown, Unused: text.GiBHours(s.UnusedGiBHours(c))}
	if c.Limited() {
		r.Limit = text.Bytes(c.LimitBytes)
	}
	if u := c.Usage; u != nil {
		r.Used = text.Bytes(u.UsedBytes)
		r.Processes, r.Refused = strconv.Itoa(len(u.Processes)), strconv.FormatUint(u.Refused, 10)
		r.UsedPercent, r.PeakPercent = percentOf(u.UsedBytes, c.LimitBytes), percentOf(u.PeakBytes, c.LimitBytes)
	}
	r.Busy, r.Activity = text.Ratio(c.Utilization), activity(c.Idleness)
	if job, ok := jobOf(c.Workload); ok {
		r.JobPage = job.page()
	}
	if c.Uncounted != nil {
		r.Uncounted = text.Bytes(c.Uncounted.Bytes)
	}
	return r
}

// nameOf returns a short name of what a claim is for.
func nameOf(c *monitor.Claim) string {
	w := c.Workload
	return cmp.Or(w.Job, w.ContainerName, w.Allocation, "claim "+c.ID)
}

// Fact is one line of a list of properties.
type Fact struct{ Name, Value string }

// gpuDetails are all that is known of a GPU.
type gpuDetails struct {
	*monitor.GPU
	Facts []Fact
	// Shares are of the governed claims on it.
	Shares   []turnsRow
	Timeline *timelineDetails
	Xids     []Fact
}

func detailsOf(s *monitor.Snapshot, g *monitor.GPU) *gpuDetails {
	d := &gpuDetails{GPU: g, Shares: turnsOf(s.On(g.UUID)), Facts: []Fact{
		{"UUID", g.UUID},
		{"Mode", string(g.Mode)},
		{"Memory", text.OptionalBytes(g.MemoryBytes)},
		{"Used by all processes", text.OptionalBytes(g.UsedBytes)},
		{"Reserved by claims", text.Bytes(s.ReservedBytes(g.UUID))},
		{"Used outside claims", text.OptionalBytes(g.OutsideBytes)},
		{"Reserved by the driver", text.OptionalBytes(g.DriverBytes)},
		{"Utilization", text.Scaled(g.GPUPercent, 1, "%")},
		{"Memory utilization", text.Scaled(g.MemoryPercent, 1, "%")},
		{"Temperature", text.Scaled(g.TemperatureCelsius, 1, " °C")},
		{"Power", text.Scaled(g.PowerMilliwatts, 0.001, " W")},
		{"Power limit", text.Scaled(g.PowerLimitMilliwatts, 0.001, " W")},
	}}
	if n := g.Slices; n != nil {
		d.Facts = append(d.Facts, Fact{"Slice", text.Bytes(n.SliceBytes)}, Fact{"Slices", text.OptionalCount(n.Total)})
		for _, state := range []struct {
			name  string
			count int
		}{
			{"running", n.Running}, {"reserved", n.Reserved}, {"dormant", n.Dormant}, {"outside claims", n.Outside},
			{"unhealthy", n.Unhealthy}, {"free", n.Free},
		} {
			if n.Total != nil || state.count > 0 {
				d.Facts = append(d.Facts, Fact{"Slices " + state.name, strconv.Itoa(state.count)})
			}
		}
	}
	for _, xid := range slices.Sorted(maps.Keys(g.Xids)) {
		d.Xids = append(d.Xids, Fact{strconv.FormatUint(xid, 10), strconv.FormatUint(g.Xids[xid], 10)})
	}
	return d
}

// claimDetails are all that is known of a claim.
type claimDetails struct {
	row
	Facts []Fact
	// Shares has one row if the claim is governed.
	Shares []turnsRow
	// Advice is what its slices should be; empty if they are right, or nothing is known.
	Advice string
	// JobLink and AllocationLink lead to Nomad's web interface.
	JobLink, AllocationLink string
}

func (p *Pages) claimDetails(s *monitor.Snapshot, c *monitor.Claim) *claimDetails {
	d := &claimDetails{row: rowOf(s, c), Advice: adviceFor(c), Shares: turnsOf([]*monitor.Claim{c})}
	w := c.Workload
	verified := "by Nomad"
	if !w.Verified {
		verified = "not verified: the container says so"
	}
	for _, f := range []Fact{
		{"State", string(c.State)}, {"Owner", c.Owner}, {"Namespace", w.Namespace}, {"Job", w.Job}, {"Group", w.Group},
		{"Task", w.Task}, {"Allocation", w.Allocation}, {"Container name", w.ContainerName},
	} {
		if f.Value != "" {
			d.Facts = append(d.Facts, f)
		}
	}
	if w.OfNomad() {
		d.Facts = append(d.Facts, Fact{"Names", verified})
	}
	d.Facts = append(d.Facts, Fact{"Made", c.Created.UTC().Format(TimeFormat)}, Fact{"Mode", string(c.Mode)})
	if c.Sliced() {
		d.Facts = append(d.Facts, Fact{"Slices", strconv.Itoa(len(c.Slices))})
	}
	if c.Container != nil {
		d.Facts = append(d.Facts, Fact{"Container", c.Container.ID}, Fact{"Runtime", c.Container.Runtime})
	}
	if d.Activity != "" {
		d.Facts = append(d.Facts, Fact{"Activity", d.Activity})
	}
	if u := c.Usage; u != nil && u.Spill != nil {
		d.Facts = append(d.Facts, Fact{"Host memory", text.Bytes(u.Spill.UsedBytes) + " of " + text.Bytes(u.Spill.LimitBytes)})
	}
	if w.Job != "" {
		d.JobLink = p.nomadLink("jobs", w.Job+"@"+cmp.Or(w.Namespace, "default"))
	}
	if w.Allocation != "" {
		d.AllocationLink = p.nomadLink("allocations", w.Allocation)
	}
	return d
}

// activity reports whether a claim uses its GPU, and since when not; empty of one that does not run.
func activity(is monitor.Idleness) string {
	text := strings.ReplaceAll(string(is.Activity), "_", " ")
	if is.Idle != nil && *is.Idle > 0 {
		text += " for " + is.Idle.Truncate(time.Second).String()
	}
	return text
}
