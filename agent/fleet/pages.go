package fleet

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/tranche-gpu/tranche/agent/page"
	"github.com/tranche-gpu/tranche/internal/explain"
)

// view is what the template of a page gets.
type view struct {
	page.Frame
	Node, Version, Software string
	Time                    time.Time
	Errors                  map[string]string
	// SignedIn reports whether there is a session to end.
	SignedIn bool
	Legend   []page.Kind
	Map      *mapDetails
	// Of is the node that the page is about.
	Of      *nodeDetails
	Jobs    *jobsDetails
	Job     *jobDetails
	Waiting *page.WaitingDetails
	Message string
	// Rights and Hours are what a token needs, and for how long a session lasts.
	Rights string
	Hours  int
}

func (f *Fleet) newView(r *http.Request, title string) *view {
	v := &view{Frame: page.NewFrame(r, title), Node: "fleet", Version: f.Version, Time: time.Now(), SignedIn: f.sessions.of(r) != nil, Legend: legend}
	v.Nav = []page.Link{{Address: "/", Text: "GPUs"}, {Address: "/waiting", Text: "Waiting"}}
	if !v.SignedIn {
		v.Nav = append(v.Nav, page.Link{Address: signInPath, Text: "Sign in"})
	}
	return v
}

// visit is a request of a viewer, and what that one may see.
type visit struct {
	*http.Request
	viewer *viewer
	state  *state
}

// shown returns the handler of a page that shows the cluster as its viewer may see it.
func (f *Fleet) shown(serve func(http.ResponseWriter, *visit)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		viewer := cmp.Or(f.sessions.of(r), f.anonymous)
		s, err := f.stateFor(r.Context(), viewer)
		switch {
		case refused(err) && viewer == f.anonymous:
			f.askForToken(w, r, http.StatusForbidden, "")
		case refused(err):
			f.sessions.end(w, r)
			f.askForToken(w, r, http.StatusForbidden, "Nomad does not take your token any more: "+err.Error()+". "+rights)
		case err != nil:
			f.noAnswer(w, r, err)
		default:
			serve(w, &visit{r, viewer, s})
		}
	}
}

// stateFor returns the cluster as a viewer may see it.
func (f *Fleet) stateFor(ctx context.Context, v *viewer) (*state, error) {
	mine, err := v.look(ctx)
	if err != nil {
		return nil, err
	}
	all, err := f.cluster.nodes(ctx, v.client)
	if err != nil {
		return nil, err
	}
	return newState(all, mine, f.cluster.allStatistics(ctx, v.client, all)), nil
}

// newViewOf returns a view of what a visit may see.
func (f *Fleet) newViewOf(r *visit, title string) *view {
	v := f.newView(r.Request, title)
	v.Time = r.state.mine.time
	return v
}

func (f *Fleet) serveMap(w http.ResponseWriter, r *visit) {
	v := f.newViewOf(r, "GPUs of all nodes")
	v.Map = newMap(r.state)
	f.templates.Write(w, http.StatusOK, "map", v)
}

func (f *Fleet) serveNode(w http.ResponseWriter, r *visit) {
	v := f.newViewOf(r, "Node")
	id := r.URL.Query().Get("id")
	v.Query = url.Values{"id": {id}}
	for _, n := range r.state.nodes {
		if n.ID == id {
			v.Title, v.Of = "Node "+n.Name, f.newNodeDetails(n)
			f.templates.Write(w, http.StatusOK, "node", v)
			return
		}
	}
	f.missing(w, v, "No node with GPUs of Tranche's has the ID "+id+".")
}

func (f *Fleet) serveNamespace(w http.ResponseWriter, r *visit) {
	v := f.newViewOf(r, "Namespace")
	name := r.URL.Query().Get("name")
	v.Query = url.Values{"name": {name}}
	v.Title, v.Jobs = "Namespace "+name, newJobs(r.state, name)
	if len(v.Jobs.Jobs) == 0 {
		f.missing(w, v, "No allocation that you may see has a GPU in namespace "+name+".")
		return
	}
	f.templates.Write(w, http.StatusOK, "namespace", v)
}

func (f *Fleet) serveJob(w http.ResponseWriter, r *visit) {
	v := f.newViewOf(r, "Job")
	namespace, name := cmp.Or(r.URL.Query().Get("namespace"), "default"), r.URL.Query().Get("name")
	v.Query = url.Values{"namespace": {namespace}, "name": {name}}
	v.Title, v.Job = "Job "+name, f.newJob(r.state, namespace, name)
	if len(v.Job.Rows) == 0 {
		f.missing(w, v, "No allocation that you may see of job "+name+" in namespace "+namespace+" has a GPU.")
		return
	}
	f.templates.Write(w, http.StatusOK, "job", v)
}

func (f *Fleet) serveWaiting(w http.ResponseWriter, r *visit) {
	v := f.newViewOf(r, "Waiting")
	queue, err := r.viewer.queue.Get(r.viewer.fresh, func() (*explain.Queue, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), listTimeout)
		defer cancel()
		return explain.Waiting(ctx, r.viewer.client, &explain.Inventory{
			Nodes: r.state.all, Allocations: r.state.mine.allocs, Statistics: r.state.known,
		})
	})
	if err != nil {
		f.noAnswer(w, r.Request, err)
		return
	}
	v.Waiting = page.NewWaiting(queue, f.NomadUI, r.state.hasJob)
	f.templates.Write(w, http.StatusOK, "waiting", v)
}

// problem shows a message instead of a page.
func (f *Fleet) problem(w http.ResponseWriter, v *view, status int, message string) {
	v.Message = message
	f.templates.Write(w, status, "problem", v)
}

// noAnswer says that Nomad does not answer. Why not is for the operator: viewers may be anybody.
func (f *Fleet) noAnswer(w http.ResponseWriter, r *http.Request, err error) {
	f.Logger.Warn("cannot query Nomad; check that it runs, and NOMAD_ADDR in the environment", "error", err)
	f.problem(w, f.newView(r, "Nomad does not answer"), http.StatusBadGateway, "Nomad cannot be queried. The log of tranche fleet says why.")
}

func (f *Fleet) missing(w http.ResponseWriter, v *view, message string) {
	v.Title, v.Refresh = "Not found", 0
	f.problem(w, v, http.StatusNotFound, message)
}
