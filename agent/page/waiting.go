package page

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/tranche-gpu/tranche/internal/explain"
)

// WaitingDetails are the task groups that wait for devices, and what there is of these.
type WaitingDetails struct {
	*explain.Queue
	Rows []waitingRow
}

type waitingRow struct {
	explain.Blocked
	// Lacks is the reason, in parts, and Tried when Nomad tried last.
	Lacks []string
	Tried string
	// JobPage is the address of the job's page here, if it has claims, and NomadPage that in Nomad; empty if there is none.
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
	v.Waiting = NewWaiting(queue, p.NomadUI, func(namespace, job string) bool { return here[jobKey{namespace, job}] })
	p.write(w, http.StatusOK, "waiting", v)
}

// NewWaiting returns what the page of waiting groups shows; hasPage reports whether a job has a page of its own.
func NewWaiting(queue *explain.Queue, nomadUI *url.URL, hasPage func(namespace, job string) bool) *WaitingDetails {
	d := &WaitingDetails{Queue: queue}
	for _, b := range queue.Groups {
		row := waitingRow{
			Blocked: b, Lacks: strings.Split(b.Reason, "; "), Tried: b.Tried.UTC().Format(TimeFormat),
			NomadPage: NomadPage(nomadUI, "jobs", b.Job+"@"+b.Namespace),
		}
		if hasPage(b.Namespace, b.Job) {
			row.JobPage = JobPage(b.Namespace, b.Job)
		}
		d.Rows = append(d.Rows, row)
	}
	return d
}
