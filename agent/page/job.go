package page

import (
	"cmp"
	"net/http"
	"net/url"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/usage/bill"
)

// jobKey names a job. The instances of a periodic or parameterized job are one job, as in the reports of usage.
type jobKey struct{ Namespace, Name string }

// jobOf returns the job that a workload is of; false if it is none of Nomad's.
func jobOf(w claim.Workload) (jobKey, bool) {
	k := jobKey{cmp.Or(w.Namespace, "default"), cmp.Or(w.ParentJob, w.Job)}
	return k, k.Name != ""
}

// page returns the address of the job's page.
func (k jobKey) page() string { return "/job?" + k.query().Encode() }

func (k jobKey) query() url.Values { return url.Values{"namespace": {k.Namespace}, "name": {k.Name}} }

// jobDetails are the claims of a job on this node, and what would be the right size for its tasks.
type jobDetails struct {
	jobKey
	Claims []row
	Tasks  []*taskSize
	// Unverified is how many of the claims have the job's name from their container alone.
	Unverified int
	// NomadPage leads to Nomad's web interface, and UsagePage to the usage of this month; both may be empty.
	NomadPage, UsagePage string
}

// taskSize is what the claims of a task have and have needed, the most of each.
type taskSize struct {
	Group, Task          string
	Claims               int
	Slices, Peak, Advice string
	Refused              uint64
	need
}

func (p *Pages) serveJob(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "Job")
	k := jobKey{cmp.Or(r.URL.Query().Get("namespace"), "default"), r.URL.Query().Get("name")}
	v.Query = k.query()
	d := p.jobDetails(v.Snapshot, k)
	if len(d.Claims) == 0 {
		p.missing(w, r, "Job "+k.Name+" in namespace "+k.Namespace+" has no claim on this node.")
		return
	}
	v.Title, v.Job = "Job "+k.Name, d
	p.write(w, http.StatusOK, "job", v)
}

func (p *Pages) jobDetails(s *monitor.Snapshot, k jobKey) *jobDetails {
	d := &jobDetails{jobKey: k, NomadPage: p.nomadLink("jobs", k.Name+"@"+k.Namespace)}
	if p.Usage != nil {
		d.UsagePage = "/usage/" + string(bill.ByJob) + "/" + time.Now().UTC().Format(monthLayout)
	}
	for _, c := range s.Claims {
		if of, ok := jobOf(c.Workload); !ok || of != k {
			continue
		}
		d.Claims = append(d.Claims, rowOf(s, c))
		d.task(c.Workload).add(c)
		if !c.Workload.Verified {
			d.Unverified++
		}
	}
	for _, t := range d.Tasks {
		t.finish()
	}
	return d
}

// task returns the task that a workload is of.
func (d *jobDetails) task(w claim.Workload) *taskSize {
	for _, t := range d.Tasks {
		if t.Group == w.Group && t.Task == w.Task {
			return t
		}
	}
	t := &taskSize{Group: w.Group, Task: w.Task}
	d.Tasks = append(d.Tasks, t)
	return t
}

func (t *taskSize) add(c *monitor.Claim) {
	t.Claims++
	if n, known := needOf(c); known {
		t.need = need{max(t.slices, n.slices), max(t.sliceBytes, n.sliceBytes), max(t.peakBytes, n.peakBytes), t.refused + n.refused}
	}
}

// finish writes what is known of the task.
func (t *taskSize) finish() {
	t.Slices, t.Peak, t.Refused = text.Unknown, text.Unknown, t.refused
	if t.slices > 0 {
		t.Slices, t.Peak = text.OptionalCount(&t.slices), text.Bytes(t.peakBytes)
		t.Advice = cmp.Or(t.advice(), "Its slices are right for what it needed so far.")
	}
}
