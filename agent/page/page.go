// Package page shows a node's GPUs and claims to people, as HTML with SVG that needs no script. All names that it shows are
// untrusted.
package page

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/timeline"
	"github.com/tranche-gpu/tranche/internal/explain"
	"github.com/tranche-gpu/tranche/usage/bill"
)

// Options are what the pages need beside snapshots.
type Options struct {
	// Node is the node's name.
	Node    string
	Version string
	// NomadUI is the address of Nomad's web interface, to which claims are linked; empty if there is none.
	NomadUI *url.URL
	// Usage reports what is accounted of a time; nil if nothing is.
	Usage func(ctx context.Context, by bill.By, from, to time.Time) (*bill.Report, error)
	// Waiting returns which task groups of Nomad's wait for devices; nil if Nomad is not to be queried.
	Waiting func(context.Context) (*explain.Queue, error)
	// Timeline has how busy GPUs and claims were; nil if nobody fills it.
	Timeline *timeline.Timeline
}

// Pages serves the pages.
type Pages struct {
	Options
	snapshot  func(context.Context) *monitor.Snapshot
	templates Templates
}

// parsed has the template of each page.
var parsed = sync.OnceValues(func() (Templates, error) {
	return Parse(sources, "map", "gpu", "claim", "job", "idle", "waiting", "usage", "missing")
})

// New returns the pages of a monitor's snapshots.
func New(snapshot func(context.Context) *monitor.Snapshot, o Options) (*Pages, error) {
	templates, err := parsed()
	if err != nil {
		return nil, err
	}
	return &Pages{Options: o, snapshot: snapshot, templates: templates}, nil
}

// Register adds the pages to a server.
func (p *Pages) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", p.serveMap)
	mux.HandleFunc("GET /gpu/{uuid}", p.serveGPU)
	mux.HandleFunc("GET /claim/{id}", p.serveClaim)
	mux.HandleFunc("GET /job", p.serveJob)
	mux.HandleFunc("GET /idle", p.serveIdle)
	if p.Waiting != nil {
		mux.HandleFunc("GET /waiting", p.serveWaiting)
	}
	if p.Usage != nil {
		p.registerUsage(mux)
	}
	RegisterFiles(mux)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) { p.missing(w, r, "There is no such page.") })
}

// view is what the template of a page gets.
type view struct {
	Frame
	Options
	*monitor.Snapshot
	Bars    []bar
	Rows    []row
	Dormant []row
	GPU     *gpuDetails
	Claim   *claimDetails
	Job     *jobDetails
	Idle    *idleDetails
	Waiting *WaitingDetails
	Report  *usageDetails
	Message string
}

// Software says which driver the node has; empty if that is unknown.
func (v *view) Software() string {
	if v.DriverVersion == "" {
		return ""
	}
	return "Driver " + v.DriverVersion + ", CUDA " + v.CUDAVersion + "."
}

// claim returns the claim with an ID, or nil.
func (v *view) claim(id string) *monitor.Claim {
	for _, c := range v.Claims {
		if c.ID == id {
			return c
		}
	}
	return nil
}

func (p *Pages) newView(r *http.Request, title string) *view {
	v := &view{Frame: NewFrame(r, title), Options: p.Options, Snapshot: p.snapshot(r.Context())}
	v.Nav = []Link{{"/", "GPUs"}, {"/idle", "Idle"}}
	if p.Waiting != nil {
		v.Nav = append(v.Nav, Link{"/waiting", "Waiting"})
	}
	if p.Usage != nil {
		v.Nav = append(v.Nav, Link{"/usage", "Usage"})
	}
	v.Nav = append(v.Nav, Link{"/metrics", "Metrics"})
	return v
}

func (p *Pages) serveMap(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "GPUs")
	v.Bars = barsOf(v.Snapshot)
	v.Rows, v.Dormant = rowsOf(v.Snapshot, v.Claims)
	p.write(w, http.StatusOK, "map", v)
}

func (p *Pages) serveGPU(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "GPU")
	g := v.Snapshot.GPU(r.PathValue("uuid"))
	if g == nil || g.UUID == "" {
		p.missing(w, r, "This node has no GPU "+r.PathValue("uuid")+".")
		return
	}
	v.Title = "GPU " + strconv.Itoa(g.Index)
	claims := v.On(g.UUID)
	v.Bars = []bar{barOf(v.Snapshot, g, 100)}
	v.Rows, v.Dormant = rowsOf(v.Snapshot, claims)
	v.GPU = detailsOf(v.Snapshot, g)
	if v.GPU.Timeline = p.timelineOf(v, g.UUID, r.URL.Query().Get("hours")); v.GPU.Timeline != nil {
		v.Query = url.Values{"hours": {strconv.Itoa(v.GPU.Timeline.Hours)}}
	}
	p.write(w, http.StatusOK, "gpu", v)
}

func (p *Pages) serveClaim(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "Claim")
	c := v.claim(r.PathValue("id"))
	if c == nil {
		p.missing(w, r, "There is no claim "+r.PathValue("id")+". It may have ended, or its slices went to another one.")
		return
	}
	v.Title, v.Claim = "Claim "+c.ID, p.claimDetails(v.Snapshot, c)
	p.write(w, http.StatusOK, "claim", v)
}

func (p *Pages) missing(w http.ResponseWriter, r *http.Request, message string) {
	v := p.newView(r, "Not found")
	v.Message, v.Path, v.Refresh = message, "/", 0
	p.write(w, http.StatusNotFound, "missing", v)
}

func (p *Pages) write(w http.ResponseWriter, status int, name string, v *view) {
	p.templates.Write(w, status, name, v)
}

func (p *Pages) nomadLink(parts ...string) string { return NomadPage(p.NomadUI, parts...) }
