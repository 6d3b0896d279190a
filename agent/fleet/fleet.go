// Package fleet shows the GPUs of all nodes and the allocations on them, from Nomad's API. It has no token of its own: each
// viewer signs in with a Nomad token, and sees what Nomad shows to it. It changes nothing in Nomad.
package fleet

import (
	"embed"
	"net/http"
	"net/url"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/agent/page"
)

//go:embed templates/*.html
var sources embed.FS

// The paths to which the pages send forms.
const (
	signInPath  = "/sign-in"
	signOutPath = "/sign-out"
)

// Forms are the paths to which the pages send forms.
var Forms = []string{signInPath, signOutPath}

// Options are what the pages need.
type Options struct {
	Nomad *Nomad
	// NomadUI is the address of Nomad's web interface, to which jobs and allocations are linked; nil if there is none.
	NomadUI *url.URL
	Version string
	Logger  hclog.Logger
}

// Fleet serves the pages. Make one with New.
type Fleet struct {
	Options
	cluster   cluster
	sessions  sessions
	anonymous *viewer
	templates page.Templates
}

// New returns the pages of a cluster that was not queried yet.
func New(o Options) (*Fleet, error) {
	templates, err := page.Parse(sources, "map", "node", "namespace", "job", "waiting", "sign-in", "problem")
	if err != nil {
		return nil, err
	}
	anonymous, err := o.Nomad.viewer("")
	if err != nil {
		return nil, err
	}
	return &Fleet{Options: o, cluster: cluster{times: o.Nomad.times}, anonymous: anonymous, templates: templates}, nil
}

// Handler returns what the fleet view serves.
func (f *Fleet) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /{$}", f.shown(f.serveMap))
	mux.HandleFunc("GET /node", f.shown(f.serveNode))
	mux.HandleFunc("GET /namespace", f.shown(f.serveNamespace))
	mux.HandleFunc("GET /job", f.shown(f.serveJob))
	mux.HandleFunc("GET /waiting", f.shown(f.serveWaiting))
	mux.HandleFunc("GET "+signInPath, func(w http.ResponseWriter, r *http.Request) { f.askForToken(w, r, http.StatusOK, "") })
	mux.HandleFunc("POST "+signInPath, f.signIn)
	mux.HandleFunc("POST "+signOutPath, f.signOut)
	page.RegisterFiles(mux)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		f.missing(w, f.newView(r, "Not found"), "There is no such page.")
	})
	return mux
}

// Close waits for queries that are under way.
func (f *Fleet) Close() { f.cluster.queries.Wait() }
