package page

import (
	"fmt"
	"strconv"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/internal/percent"
)

// turnsRow is what a governed claim has of its GPU's time.
type turnsRow struct {
	ID, Name, Share, Max, Priority            string
	Had, GPUTime, Waited, Overruns, NotJoined string
}

// turnsOf returns the rows of those claims that are governed.
func turnsOf(claims []*monitor.Claim) []turnsRow {
	var rows []turnsRow
	for _, c := range claims {
		if c.Governed() {
			rows = append(rows, turnsRowOf(c))
		}
	}
	return rows
}

func turnsRowOf(c *monitor.Claim) turnsRow {
	r := turnsRow{
		ID: c.ID, Name: nameOf(c),
		Share: percent.Format(c.Compute.Share), Max: percent.Format(c.Compute.Max), Priority: string(c.Compute.Class),
		Had: text.Had(c.Turns), GPUTime: text.Unknown, Waited: text.Unknown, Overruns: text.Unknown, NotJoined: text.Unknown,
	}
	if u := c.Turns; u != nil {
		r.GPUTime, r.Waited = fmt.Sprintf("%.1f s", u.GPUSeconds), fmt.Sprintf("%.1f s", u.WaitingSeconds)
		r.Overruns, r.NotJoined = strconv.FormatUint(u.Overruns, 10), strconv.Itoa(len(u.NotJoined))
	}
	return r
}
