package page

import (
	"net/http"
	"strings"

	"github.com/tranche-gpu/tranche/internal/explain"
)

// waitingDetails are the task groups that wait for devices, and what there is of these.
type waitingDetails struct {
	*explain.Queue
	Rows []waitingRow
}

type waitingRow struct {
	explain.Blocked
	// Lacks is the reason, in parts, and Tried when Nomad tried last.
	Lacks []string
	Tried string
	// JobPage is the address of the job's page on this node, if it has claims here, and NomadPage that in Nomad; empty if there is none.
	JobPage, NomadPage string
}

func (p *Pages) serveWaiting(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "Waiting")
	queue, err := p.Waiting(r.Context())
	if err != nil {
		v.Message = err.Error()
		p.write(w, http.StatusBadGateway, "waiting", v)
		return
	}
	here := map[jobKey]bool{}
	for _, c := range v.Claims {
		if job, ok := jobOf(c.Workload); ok {
			here[job] = true
		}
	}
	v.Waiting = &waitingDetails{Queue: queue}
	for _, b := range queue.Groups {
		row := waitingRow{
			Blocked: b, Lacks: strings.Split(b.Reason, "; "), Tried: b.Tried.UTC().Format(timeFormat),
			NomadPage: p.nomadLink("jobs", b.Job+"@"+b.Namespace),
		}
		if job := (jobKey{b.Namespace, b.Job}); here[job] {
			row.JobPage = job.page()
		}
		v.Waiting.Rows = append(v.Waiting.Rows, row)
	}
	p.write(w, http.StatusOK, "waiting", v)
}
