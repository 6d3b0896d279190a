package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/claim/idle"
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
	{"used", byNumber(func(c *monitor.Claim) float64 { return usage(c).used })},
	{"peak", byNumber(func(c *monitor.Claim) float64 { return usage(c).peak })},
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
type numbers struct{ used, peak, refused float64 }

func usage(c *monitor.Claim) numbers {
	if c.Usage == nil {
		return numbers{-1, -1, -1}
	}
	return numbers{float64(c.Usage.UsedBytes), float64(c.Usage.PeakBytes), float64(c.Usage.Refused)}
}

// selected returns the claims in which the filter occurs, sorted.
func selected(s *monitor.Snapshot, by order, filter string) []*monitor.Claim {
	var claims []*monitor.Claim
	for _, c := range s.Claims {
		if strings.Contains(strings.ToLower(strings.Join(cells(c), "\t")), strings.ToLower(filter)) {
			claims = append(claims, c)
		}
	}
	slices.SortStableFunc(claims, by.compare)
	return claims
}

// column is a column of the table, and how wide it is; the one with 0 has the rest.
type column struct {
	title string
	width int
}

var columns = []column{
	{"CLAIM", 8}, {"GPU", 3}, {"STATE", 9}, {"USED", 9}, {"PEAK", 9}, {"LIMIT", 9}, {"BUSY", 5}, {"PROCS", 5}, {"REFUSED", 7},
	{shareTitle, 12}, {"FOR", 0},
}

const (
	// shareTitle is of the column that is there if a claim is governed,
	shareTitle = "SHARE/HAD"
	// shareFrom and from which width of the window on.
	shareFrom = 100
)

// shown returns the columns that a window of a width has for claims, and their rows.
func shown(claims []*monitor.Claim, width int) ([]column, [][]string) {
	withShares := width >= shareFrom && slices.ContainsFunc(claims, func(c *monitor.Claim) bool { return c.Governed() })
	at := slices.IndexFunc(columns, func(c column) bool { return c.title == shareTitle })
	titles := slices.Clone(columns)
	if !withShares {
		titles = slices.Delete(titles, at, at+1)
	}
	var rows [][]string
	for _, c := range claims {
		row := cells(c)
		if !withShares {
			row = slices.Delete(row, at, at+1)
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

// state says what an operator is to look at first of a claim.
func state(c *monitor.Claim) string {
	switch {
	case c.Uncounted != nil:
		return "uncounted"
	case c.IdleTooLong != nil && c.IdleTooLong.State != idle.Observed:
		return string(c.IdleTooLong.State)
	case c.Idleness.Is():
		return "idle"
	}
	return string(c.State)
}

// cells returns the row of a claim.
func cells(c *monitor.Claim) []string {
	used, peak, processes, refused := text.Unknown, text.Unknown, text.Unknown, text.Unknown
	if u := c.Usage; u != nil {
		used, peak = text.Bytes(u.UsedBytes), text.Bytes(u.PeakBytes)
		processes, refused = strconv.Itoa(len(u.Processes)), strconv.FormatUint(u.Refused, 10)
	}
	limit := "none"
	if c.Limited() {
		limit = text.Bytes(c.LimitBytes)
	}
	return []string{
		c.ID, text.Index(c.GPUIndex), state(c), used, peak, limit, text.Ratio(c.Utilization), processes, refused,
		share(c), c.Workload.String(),
	}
}
