package page

import (
	"cmp"
	"maps"
	"net/http"
	"slices"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/text"
)

// idleDetails are the running claims by whether they use their GPU.
type idleDetails struct {
	// Idle are those that do not, the longest first; of the Unknown it is not known.
	Idle, Unknown []row
	Active        int
	// Reserved is the memory that the idle ones reserve.
	Reserved string
	// Jobs and Namespaces are what all claims did not use, the most first.
	Jobs, Namespaces []unused
}

// unused is what the claims of a job or a namespace reserved and did not use in the last day.
type unused struct {
	Name, Page string
	Claims     int
	Hours      float64
}

// GiBHours is the unused memory times the hours.
func (u unused) GiBHours() string { return text.GiBHours(&u.Hours) }

// unusedBy sums up the unused memory of claims by a name, and the page of that.
func unusedBy(s *monitor.Snapshot, of func(*monitor.Claim) (name, page string)) []unused {
	sums := map[string]unused{}
	for _, c := range s.Claims {
		if hours := s.UnusedGiBHours(c); hours != nil && c.Holds() {
			name, page := of(c)
			sums[name] = unused{name, page, sums[name].Claims + 1, sums[name].Hours + *hours}
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b unused) int {
		return cmp.Or(cmp.Compare(b.Hours, a.Hours), cmp.Compare(a.Name, b.Name))
	})
}

func (p *Pages) serveIdle(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "Idle claims")
	v.Idle = idleDetailsOf(v.Snapshot)
	p.write(w, http.StatusOK, "idle", v)
}

func idleDetailsOf(s *monitor.Snapshot) *idleDetails {
	d := new(idleDetails)
	var reserved uint64
	for _, c := range slices.SortedStableFunc(slices.Values(s.Claims), s.CompareUnused) {
		switch c.Idleness.Activity {
		case "": // it does not run
		case monitor.ActivityActive:
			d.Active++
		case monitor.ActivityUnknown:
			d.Unknown = append(d.Unknown, rowOf(s, c))
		default:
			d.Idle = append(d.Idle, rowOf(s, c))
			if c.Limited() {
				reserved += c.LimitBytes
			}
		}
	}
	d.Reserved = text.Bytes(reserved)
	d.Jobs = unusedBy(s, func(c *monitor.Claim) (string, string) {
		if job, ok := jobOf(c.Workload); ok {
			return job.Namespace + "/" + job.Name, job.page()
		}
		return nameOf(c), ""
	})
	d.Namespaces = unusedBy(s, func(c *monitor.Claim) (string, string) {
		job, _ := jobOf(c.Workload)
		return job.Namespace, ""
	})
	return d
}
