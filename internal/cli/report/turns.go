package report

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/percent"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// printTurns writes a table of the governed claims, if there are any.
func (r *Report) printTurns(w *errWriter) {
	if !slices.ContainsFunc(r.Claims, func(c Claim) bool { return c.Governed() }) {
		return
	}
	w.paragraph()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CLAIM\tGPU\tSHARE\tMAX\tPRIORITY\tHAD (10 S)\tGPU TIME\tWAITED\tOVERRUNS\tJOINED")
	for _, c := range r.Claims {
		if !c.Governed() {
			continue
		}
		had, gpuTime, waited, overruns, joined := c.describeTurns()
		printable.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.ID, PhysicalGPU(&c.Claim).Index, percent.Format(c.Compute.Share),
			percent.Format(c.Compute.Max), c.Compute.Class, had, gpuTime, waited, overruns, joined)
	}
	_ = t.Flush() // errWriter keeps the error
	for _, c := range r.Claims {
		if c.Turns != nil && len(c.Turns.NotJoined) > 0 {
			printable.Fprintf(w, "claim %s: its share does not hold for processes that have not joined: %s%s\n", c.ID,
				describeProcesses(c.Turns.NotJoined), bypassText[c.Turns.Bypass])
		}
	}
}

// bypassText says what follows for a claim whose processes have not joined.
var bypassText = map[layout.Bypass]string{
	layout.BypassCharged: "; it is charged for the time that they take",
	layout.BypassEnds:    "; its task is ended for that",
}

// describeTurns says what a governed claim has had; "-" is what no governor says.
func (c *Claim) describeTurns() (had, gpuTime, waited, overruns, joined string) {
	u := c.Turns
	if u == nil {
		return "-", "-", "-", "-", "-"
	}
	joined = fmt.Sprint(len(u.Joined))
	if len(u.NotJoined) > 0 {
		joined += fmt.Sprintf(" of %d (!)", len(u.Joined)+len(u.NotJoined))
	}
	had = fmt.Sprintf("%.1f%%", 100*u.RecentPart)
	if u.Alone {
		had = "alone"
	}
	return had, fmt.Sprintf("%.1f s", u.GPUSeconds), fmt.Sprintf("%.1f s", u.WaitingSeconds),
		fmt.Sprint(u.Overruns), joined
}

func describeProcesses(processes []status.Process) string {
	var all []string
	for _, p := range processes {
		all = append(all, fmt.Sprintf("%q (%d)", p.Name, p.PID))
	}
	return strings.Join(all, ", ")
}
