package page

import (
	"cmp"
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
}

func (p *Pages) serveIdle(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "Idle claims")
	v.Idle = idleDetailsOf(v.Snapshot)
	p.write(w, http.StatusOK, "idle", v)
}

func idleDetailsOf(s *monitor.Snapshot) *idleDetails {
	d := new(idleDetails)
	var reserved uint64
	for _, c := range s.Claims {
		switch c.Idleness.Activity {
		case "": // it does not run
		case monitor.ActivityActive:
			d.Active++
		case monitor.ActivityUnknown:
			d.Unknown = append(d.Unknown, rowOf(c))
		default:
			d.Idle = append(d.Idle, rowOf(c))
			if c.Limited() {
				reserved += c.LimitBytes
			}
		}
	}
	slices.SortStableFunc(d.Idle, func(a, b row) int { return cmp.Compare(*b.Idleness.Idle, *a.Idleness.Idle) })
	d.Reserved = text.Bytes(reserved)
	return d
}
