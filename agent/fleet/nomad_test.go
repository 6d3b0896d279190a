package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/agent/agenttest"
)

// The tokens that the cluster of these tests knows, and which are taken for secrets in all that is shown.
const (
	tokenOfAll      = "11111111-secret"
	tokenOfResearch = "22222222-secret"
	tokenOfNothing  = "33333333-secret" // it may read nodes and no job
	tokenWithNoNode = "44444444-secret"
)

// nomad answers as Nomad's API does, with ACLs; e2e.TestFleet is the test with the real one.
type nomad struct {
	*httptest.Server
	nodes       []*api.NodeListStub
	allocs      []*api.AllocationListStub
	evaluations []*api.Evaluation
	jobs        map[string]*api.Job
	// statistics are by node; one that is missing has HTTP 500. Those of the node that hangs come when it is closed.
	statistics map[string]any
	hangs      map[string]chan struct{}

	mu       sync.Mutex
	requests map[string]int
	// namespaces are those that each token may see, "*" for all. Tokens that are missing are refused.
	namespaces map[string][]string
}

// newNomad serves a cluster.
func newNomad(t testing.TB, n *nomad) *nomad {
	t.Helper()
	n.requests = make(map[string]int)
	n.namespaces = map[string][]string{tokenOfAll: {"*"}, tokenOfResearch: {"research"}, tokenOfNothing: {}, tokenWithNoNode: {"*"}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("per_page") == "1" {
			answer(w, n.nodes[:min(1, len(n.nodes))])
			return
		}
		must.Eq(t, "true", r.FormValue("resources"))
		answer(w, n.nodes)
	})
	mux.HandleFunc("GET /v1/allocations", func(w http.ResponseWriter, r *http.Request) {
		must.Eq(t, "*", r.FormValue("namespace"))
		answer(w, slices.DeleteFunc(slices.Clone(n.allocs), func(a *api.AllocationListStub) bool { return !n.sees(r, a.Namespace) }))
	})
	mux.HandleFunc("GET /v1/evaluations", func(w http.ResponseWriter, r *http.Request) {
		answer(w, slices.DeleteFunc(slices.Clone(n.evaluations), func(e *api.Evaluation) bool { return !n.sees(r, e.Namespace) }))
	})
	mux.HandleFunc("GET /v1/job/{id}", func(w http.ResponseWriter, r *http.Request) { answer(w, n.jobs[r.PathValue("id")]) })
	mux.HandleFunc("GET /v1/client/stats", func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("node_id")
		if hangs := n.hangs[id]; hangs != nil {
			select {
			case <-hangs:
			case <-r.Context().Done():
				return
			}
		}
		if n.statistics[id] == nil {
			http.Error(w, "No path to node", http.StatusInternalServerError)
			return
		}
		answer(w, n.statistics[id])
	})
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		must.Eq(t, http.MethodGet, r.Method)
		must.StrNotContains(t, r.URL.String(), "secret")
		token := r.Header.Get("X-Nomad-Token")
		n.mu.Lock()
		n.requests[r.URL.Path]++
		_, known := n.namespaces[token]
		n.mu.Unlock()
		switch {
		case !known && token != "":
			http.Error(w, "ACL token not found", http.StatusForbidden)
		case !known, token == tokenWithNoNode && (r.URL.Path == "/v1/nodes" || r.URL.Path == "/v1/client/stats"),
			token == tokenOfNothing && r.URL.Path == "/v1/allocations":
			http.Error(w, "Permission denied", http.StatusForbidden)
		default:
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(n.Close)
	return n
}

func answer(w http.ResponseWriter, value any) { _ = json.NewEncoder(w).Encode(value) }

func (n *nomad) sees(r *http.Request, namespace string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.namespaces[r.Header.Get("X-Nomad-Token")]
	return slices.Contains(all, "*") || slices.Contains(all, namespace)
}

// asked returns how often each path was requested.
func (n *nomad) asked(path string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.requests[path]
}

// allow sets what a token may see from now on; nil for one that there is no longer.
func (n *nomad) allow(token string, namespaces []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.namespaces[token] = namespaces
	if namespaces == nil {
		delete(n.namespaces, token)
	}
}

// start returns the pages of a cluster.
func start(t testing.TB, n *nomad) *Fleet {
	t.Helper()
	return startWith(t, n, io.Discard)
}

// startWith has the pages write to a log.
func startWith(t testing.TB, n *nomad, log io.Writer) *Fleet {
	t.Helper()
	t.Setenv("NOMAD_ADDR", n.URL)
	t.Setenv("NOMAD_TOKEN", tokenOfAll) // which is for nobody
	reached, err := FromEnvironment()
	must.NoError(t, err)
	reached.times = times{lists: time.Hour, statistics: time.Hour, timeout: time.Hour, patience: time.Hour}
	ui, err := url.Parse("https://nomad.example.com:4646")
	must.NoError(t, err)
	f, err := New(Options{Nomad: reached, NomadUI: ui, Version: "v1.2.3", Logger: hclog.New(&hclog.LoggerOptions{Output: log})})
	must.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// browser is somebody with cookies.
type browser struct {
	t       testing.TB
	handler http.Handler
	cookies map[string]*http.Cookie
}

func openBrowser(t testing.TB, f *Fleet) *browser {
	t.Helper()
	return &browser{t, f.Handler(), map[string]*http.Cookie{}}
}

// signedIn is a browser with a session.
func signedIn(t testing.TB, f *Fleet, token string) *browser {
	t.Helper()
	b := openBrowser(t, f)
	w := b.post(signInPath, url.Values{"token": {token}})
	must.Eq(t, http.StatusSeeOther, w.Code, must.Sprint(w.Body.String()))
	return b
}

// get returns the status and the body of a page.
func (b *browser) get(path string) (int, string) {
	w := b.do(httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func (b *browser) post(path string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.do(r)
}

func (b *browser) do(r *http.Request) *httptest.ResponseRecorder {
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		b.cookies[c.Name] = c
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	must.StrNotContains(b.t, fmt.Sprint(w.Result().Header, w.Body.String()), "secret", must.Sprint("a token is in an answer"))
	return w
}

// gpuNode returns a node with GPUs in slices.
func gpuNode(name string, gpus, slices int) *api.NodeListStub {
	n := &api.NodeListStub{
		ID: name + "-id", Name: name, Datacenter: "dc1", NodePool: "default", Status: api.NodeStatusReady, Version: "1.11.3",
		SchedulingEligibility: api.NodeSchedulingEligible, NodeResources: &api.NodeResources{},
	}
	for i := range gpus {
		n.NodeResources.Devices = append(n.NodeResources.Devices, sliceGroup(i, slices))
	}
	return n
}

func sliceGroup(index, slices int) *api.NodeDeviceResource {
	words := map[string]string{"model": "NVIDIA H200", "mode": "slice", "isolation": "memory"}
	numbers := map[string]int64{"index": int64(index), "memory": 143771, "slice_memory": 1024}
	g := &api.NodeDeviceResource{
		Vendor: "nvidia", Type: "slice", Name: fmt.Sprintf("NVIDIA H200/%d", index), Attributes: map[string]*api.Attribute{},
	}
	for name, value := range words {
		g.Attributes[name] = &api.Attribute{StringVal: &value}
	}
	for name, value := range numbers {
		g.Attributes[name] = &api.Attribute{IntVal: &value}
	}
	for i := range slices {
		g.Instances = append(g.Instances, &api.NodeDevice{
			ID: slice(index, i), Healthy: true, Locality: &api.NodeDeviceLocality{PciBusID: fmt.Sprintf("00000000:%02X:00.0", index)},
		})
	}
	return g
}

func slice(gpu, i int) string { return fmt.Sprintf("GPU-%d/%d", gpu, i) }

// slicesOf returns the slices of a GPU from one on, and without the one at the end.
func slicesOf(gpu, from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, slice(gpu, i))
	}
	return all
}

func allocation(id, namespace, job, node, status string, ids []string) *api.AllocationListStub {
	return &api.AllocationListStub{
		ID: id, Namespace: namespace, JobID: job, NodeID: node, TaskGroup: "g", ClientStatus: status,
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{
			"t": {Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "slice", Name: "NVIDIA H200/0", DeviceIDs: ids}}},
		}},
	}
}

// stats are what a node says of its devices: the first of each list is the first of a claim.
func stats(claims ...[]string) any {
	number := func(n int) map[string]any { return map[string]any{"IntNumeratorVal": n, "Unit": "x"} }
	instances := map[string]any{slice(0, 1): map[string]any{"Stats": map[string]any{"Attributes": nil}}}
	gpu := map[string]any{"GPU utilization": number(83), "Memory state": number(20480), "Temperature": number(45), "Power usage": number(300)}
	instances[slice(0, 0)] = map[string]any{"Stats": map[string]any{"Attributes": gpu}}
	for i, ids := range claims {
		for k, id := range ids {
			attributes := map[string]any{"Claim": map[string]any{"StringVal": fmt.Sprintf("%08d", i)}}
			if k == 0 {
				attributes["Claim memory"] = map[string]any{"IntNumeratorVal": 512 * len(ids), "IntDenominatorVal": 1024 * len(ids)}
				attributes["Claim workload"] = map[string]any{"StringVal": "confidential"}
				for name, value := range gpu {
					attributes[name] = value
				}
			}
			instances[id] = map[string]any{"Stats": map[string]any{"Attributes": attributes}}
		}
	}
	return map[string]any{"DeviceStats": []any{map[string]any{"Vendor": "nvidia", "InstanceStats": instances}}}
}

// all returns a cluster on which everything occurs. The jobs of namespace lab are confidential.
func all() *nomad {
	a, b, drained, silent := gpuNode("gpu-a", 2, 8), gpuNode("gpu-b "+agenttest.Hostile, 1, 8), gpuNode("gpu-c", 1, 8), gpuNode("gpu-d", 1, 8)
	drained.Drain = true
	other := gpuNode("cpu", 0, 0)
	foreign := sliceGroup(0, 1) // as nomad-device-nvidia has them
	delete(foreign.Attributes, "isolation")
	other.NodeResources.Devices = append(other.NodeResources.Devices, foreign)
	for i := 6; i < 8; i++ {
		d := a.NodeResources.Devices[0].Instances[i]
		d.Healthy, d.HealthDescription = false, "used outside Nomad by claim 77777777 (docker) "+agenttest.Hostile
	}
	exhausted := &api.AllocationMetric{NodesEvaluated: 2, NodesExhausted: 2, DimensionExhausted: map[string]int{"devices: no devices match request": 2}}
	count, group, id := uint64(7), "g", "batch"
	return &nomad{
		nodes: []*api.NodeListStub{silent, b, a, drained, other},
		allocs: []*api.AllocationListStub{
			allocation("aaaaaaaa-1", "research", "train", a.ID, "running", slicesOf(0, 0, 3)),
			allocation("bbbbbbbb-1", "research", agenttest.Hostile, a.ID, "pending", slicesOf(0, 3, 4)),
			allocation("cccccccc-1", "lab", "confidential", a.ID, "running", slicesOf(0, 4, 6)),
			allocation("dddddddd-1", "lab", "confidential", b.ID, "running", slicesOf(0, 0, 8)),
			allocation("eeeeeeee-1", "research", "train", drained.ID, "running", slicesOf(0, 0, 1)),
			allocation("ffffffff-1", "research", "train", silent.ID, "running", slicesOf(0, 0, 1)),
			{ID: "00000000-1", Namespace: "research", JobID: "web", NodeID: other.ID, ClientStatus: "running"},
		},
		statistics: map[string]any{
			a.ID:       stats(slicesOf(0, 0, 3), slicesOf(0, 4, 6), slicesOf(0, 6, 8)),
			b.ID:       stats(slicesOf(0, 0, 8)),
			drained.ID: stats(slicesOf(0, 0, 1)),
		},
		evaluations: []*api.Evaluation{
			{JobID: "batch", Namespace: "research", CreateTime: 2e9, FailedTGAllocs: map[string]*api.AllocationMetric{"g": exhausted}},
			{JobID: "confidential", Namespace: "lab", CreateTime: 2e9, FailedTGAllocs: map[string]*api.AllocationMetric{"g": exhausted}},
		},
		jobs: map[string]*api.Job{"batch": {ID: &id, TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{
			Name: "t", Resources: &api.Resources{Devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &count}}},
		}}}}}},
	}
}
