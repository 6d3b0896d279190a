// Package page shows a node's GPUs and claims to people, as HTML with SVG that needs no script. All names that it shows are
// untrusted.
package page

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"maps"
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

//go:embed templates/*.html
var sources embed.FS

//go:embed style.css
var style []byte

//go:embed icon.svg
var icon []byte

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
	templates map[string]*template.Template
}

// parsed has the template of each page.
var parsed = sync.OnceValues(func() (map[string]*template.Template, error) {
	all := make(map[string]*template.Template)
	for _, name := range []string{"map", "gpu", "claim", "job", "idle", "waiting", "usage", "missing"} {
		t, err := template.New("").Funcs(functions).ParseFS(sources, "templates/layout.html", "templates/parts.html",
			"templates/"+name+".html")
		if err != nil {
			return nil, err
		}
		all[name] = t
	}
	return all, nil
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
	mux.HandleFunc("GET /style.css", file("text/css; charset=utf-8", style))
	mux.HandleFunc("GET /icon.svg", file("image/svg+xml", icon))
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) { p.missing(w, r, "There is no such page.") })
}

// file serves a file that is part of the program.
func file(contentType string, content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(content)
	}
}

// view is what the template of a page gets.
type view struct {
	Title string
	Options
	*monitor.Snapshot
	// Path and Query are the page's own, and Refresh how often it is loaded again, in seconds; 0 for never.
	Path    string
	Query   url.Values
	Refresh int
	Bars    []bar
	Rows    []row
	GPU     *gpuDetails
	Claim   *claimDetails
	Job     *jobDetails
	Idle    *idleDetails
	Waiting *waitingDetails
	Report  *usageDetails
	Message string
}

// Reload returns the page's own address, with which it is loaded again after some seconds; 0 for never.
func (v *view) Reload(seconds int) string {
	query := url.Values{}
	maps.Copy(query, v.Query)
	if seconds > 0 {
		query.Set("refresh", strconv.Itoa(seconds))
	}
	return (&url.URL{Path: v.Path, RawQuery: query.Encode()}).RequestURI()
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
	return &view{
		Title: title, Options: p.Options, Snapshot: p.snapshot(r.Context()), Path: r.URL.Path, Refresh: refresh(r),
	}
}

// The least and the most seconds after which a page is loaded again.
const minRefresh, maxRefresh = 5, 3600

func refresh(r *http.Request) int {
	seconds, err := strconv.Atoi(r.URL.Query().Get("refresh"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(max(seconds, minRefresh), maxRefresh)
}

func (p *Pages) serveMap(w http.ResponseWriter, r *http.Request) {
	v := p.newView(r, "GPUs")
	v.Bars, v.Rows = barsOf(v.Snapshot), rowsOf(v.Claims)
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
	v.Bars, v.Rows = []bar{barOf(v.Snapshot, g, 100)}, rowsOf(claims)
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
	v.Title, v.Claim = "Claim "+c.ID, p.claimDetails(c)
	p.write(w, http.StatusOK, "claim", v)
}

func (p *Pages) missing(w http.ResponseWriter, r *http.Request, message string) {
	v := p.newView(r, "Not found")
	v.Message, v.Path, v.Refresh = message, "/", 0
	p.write(w, http.StatusNotFound, "missing", v)
}

// write writes all of a page or an error.
func (p *Pages) write(w http.ResponseWriter, status int, name string, v *view) {
	var b bytes.Buffer
	if err := p.templates[name].ExecuteTemplate(&b, "layout.html", v); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// nomadLink returns the page of a job or an allocation in Nomad's web interface; empty if there is none.
func (p *Pages) nomadLink(parts ...string) string {
	if p.NomadUI == nil {
		return ""
	}
	return p.NomadUI.JoinPath(append([]string{"ui"}, escaped(parts)...)...).String()
}

// escaped escapes each part, so that a slash in a name begins no new one.
func escaped(parts []string) []string {
	all := make([]string, len(parts))
	for i, part := range parts {
		all[i] = url.PathEscape(part)
	}
	return all
}
