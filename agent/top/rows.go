package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
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

// columns are the titles of the table, and how wide each is; the one with 0 has the rest.
var columns = []struct {
	title string
	width int
}{
	{"CLAIM", 8}, {"GPU", 3}, {"STATE", 9}, {"USED", 9}, {"PEAK", 9}, {"LIMIT", 9}, {"BUSY", 5}, {"PROCS", 5}, {"REFUSED", 7},
	{"FOR", 0},
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
	state := string(c.State)
	if c.Uncounted != nil {
		state = "uncounted"
	}
	return []string{
		c.ID, text.Index(c.GPUIndex), state, used, peak, limit, text.Ratio(c.Utilization), processes, refused,
		text.Printable(c.Workload.String()),
	}
}
