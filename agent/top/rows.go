package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/percent"
)

// order is by what claims are sorted.
type order struct {
	name string
	// compare puts the claims first that an operator looks for.
	compare func(a, b *monitor.Claim) int
}

// orders are in the order in which a key selects them. Claims that are equal stay in the order of their GPUs.
var orders = []order{
	{"gpu", func(a, b *monitor.Claim) int { return cmp.Compare(a.GPUIndex, b.GPUIndex) }},
	{orderUnused, nil}, // see selected
	{"used", byNumber(func(c *monitor.Claim) float64 { return usage(c).used })},
	{"peak", byNumber(func(c *monitor.Claim) float64 { return orMinus(c.PeakBytes()) })},
	{"limit", byNumber(func(c *monitor.Claim) float64 { return float64(c.LimitBytes) })},
	{"busy", byNumber(func(c *monitor.Claim) float64 {
		if c.Utilization == nil {
			return -1
		}
		return *c.Utilization
	})},
	{"refused", byNumber(func(c *monitor.Claim) float64 { return usage(c).refused })},
	{"name", func(a, b *monitor.Claim) int { return cmp.Compare(a.Workload.String(), b.Workload.String()) }},
}

// orderUnused is the order by the memory that claims did not use in the last day.
const orderUnused = "unused"

func orMinus(bytes *uint64) float64 {
	if bytes == nil {
		return -1
	}
	return float64(*bytes)
}

// orderNames lists the orders.
func orderNames() []string {
	var names []string
	for _, o := range orders {
		names = append(names, o.name)
	}
	return names
}

func byNumber(number func(*monitor.Claim) float64) func(a, b *monitor.Claim) int {
	return func(a, b *monitor.Claim) int { return cmp.Compare(number(b), number(a)) }
}

// numbers are what a claim counts; each is -1 if it is unknown.
type numbers struct{ used, refused float64 }

func usage(c *monitor.Claim) numbers {
	if c.Usage == nil {
		return numbers{-1, -1}
	}
	return numbers{float64(c.Usage.UsedBytes), float64(c.Usage.Refused)}
}

// selected returns the claims in which the filter occurs, sorted, and how many dormant ones are hidden, which have nothing of a GPU.
func (o Options) selected(s *monitor.Snapshot) (claims []*monitor.Claim, hidden int) {
	for _, c := range s.Claims {
		switch {
		case !o.Dormant && o.Filter == "" && c.State == claim.StateDormant:
			hidden++
		case strings.Contains(strings.ToLower(strings.Join(cells(s, c), "\t")), strings.ToLower(o.Filter)):
			claims = append(claims, c)
		}
	}
	compare := orders[o.order()].compare
	if o.Sort == orderUnused {
		compare = s.CompareUnused
	}
	slices.SortStableFunc(claims, compare)
	return claims, hidden
}

// column is a column of the table: how wide it is, where 0 is the rest, and from which width of the window on it is there.
type column struct {
	title       string
	width, from int
}

// columns begin with what a claim is for, of which a narrow window has the namespace and the job.
var columns = []column{
	{"FOR", 0, 0}, {"GPU", 3, 0}, {"STATE", 9, 0}, {"USED", 9, 0}, {"LIMIT", 9, 0}, {"UNUSED", 7, 0}, {"BUSY", 5, 90}, {"CLAIM", 8, 90},
	{"PEAK", 9, 100}, {"REFUSED", 7, 110}, {"PROCS", 5, 120}, {shareTitle, 12, shareFrom},
}

const (
	// shareTitle is of the column that is there if a claim is governed,
	shareTitle = "SHARE/HAD"
	// shareFrom and from which width of the window on.
	shareFrom = 120
)

// shown returns the columns that a window of a width has for claims, and their rows.
func shown(s *monitor.Snapshot, claims []*monitor.Claim, width int) ([]column, [][]string) {
	governed := slices.ContainsFunc(claims, func(c *monitor.Claim) bool { return c.Governed() })
	there := func(c column) bool { return width >= c.from && (governed || c.title != shareTitle) }
	var titles []column
	for _, c := range columns {
		if there(c) {
			titles = append(titles, c)
		}
	}
	var rows [][]string
	for _, c := range claims {
		var row []string
		for i, cell := range cells(s, c) {
			if there(columns[i]) {
				row = append(row, cell)
			}
		}
		rows = append(rows, row)
	}
	return titles, rows
}

// share returns a governed claim's share of its GPU's time and what it had of the last ten seconds. A mark says that a process
// computes outside of the claim's turns.
func share(c *monitor.Claim) string {
	if !c.Governed() {
		return text.Unknown
	}
	said := percent.Format(c.Compute.Share) + "/" + text.Had(c.Turns)
	if c.Turns != nil && len(c.Turns.NotJoined) > 0 {
		said += "!"
	}
	return said
}

// cells returns the row of a claim, in the order of columns.
func cells(s *monitor.Snapshot, c *monitor.Claim) []string {
	used, processes, refused := text.Unknown, text.Unknown, text.Unknown
	if u := c.Usage; u != nil {
		used = text.Bytes(u.UsedBytes)
		processes, refused = strconv.Itoa(len(u.Processes)), strconv.FormatUint(u.Refused, 10)
	}
	limit := "none"
	if c.Limited() {
		limit = text.Bytes(c.LimitBytes)
	}
	return []string{
		c.Workload.String(), text.Index(c.GPUIndex), c.Status(), used, limit, text.GiBHours(s.UnusedGiBHours(c)), text.Ratio(c.Utilization),
		c.ID, text.OptionalBytes(c.PeakBytes()), refused, processes, share(c),
	}
}
