package fleet

import (
	"flag"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/net/html"

	"github.com/tranche-gpu/tranche/agent/agenttest"
	"github.com/tranche-gpu/tranche/agent/page"
)

var update = flag.Bool("update", false, "write the golden files")

// paths are one of each page; missing lead to none.
var (
	paths = []string{"/", "/node?id=gpu-a-id", nodePage("gpu-b " + agenttest.Hostile + "-id"), "/node?id=gpu-c-id", "/node?id=gpu-d-id",
		"/namespace?name=research", page.JobPage("research", "train"), page.JobPage("research", agenttest.Hostile), "/waiting"}
	missing = []string{"/node?id=cpu-id", "/node", "/namespace?name=lab", "/namespace", page.JobPage("lab", "confidential"),
		"/job", "/job?name=train", "/nowhere", "/job?name=" + url.QueryEscape(agenttest.Hostile)}
	moment = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?`)
)

// TestMap_Golden is the map of one who may see one of two namespaces.
func TestMap_Golden(t *testing.T) {
	_, body := signedIn(t, start(t, newNomad(t, all())), tokenOfResearch).get("/")
	body = moment.ReplaceAllString(body, "TIME")
	const golden = "testdata/map.html"
	if *update {
		must.NoError(t, os.WriteFile(golden, []byte(body), 0o644))
	}
	want, err := os.ReadFile(golden)
	must.NoError(t, err)
	must.Eq(t, string(want), body)
}

// TestPages_OtherNamespaces shows nothing of the allocations that the viewer's token does not show, except that devices are reserved.
func TestPages_OtherNamespaces(t *testing.T) {
	f := start(t, newNomad(t, all()))
	for token, sees := range map[string]bool{tokenOfAll: true, tokenOfResearch: false} {
		b := signedIn(t, f, token)
		named := false
		for _, path := range append(paths, missing[:4]...) {
			_, body := b.get(path)
			named = named || strings.Contains(body, "confidential") && path != missing[4]
		}
		must.Eq(t, sees, named)
		_, body := b.get("/")
		must.Eq(t, !sees, strings.Contains(body, "8 of 8 nvidia/slice on GPU 0, other"))
	}
}

// TestParts compares what devices are, and who has them, with what a viewer of one namespace is shown.
func TestParts(t *testing.T) {
	f := start(t, newNomad(t, all()))
	signedIn(t, f, tokenOfResearch).get("/") // which has the statistics queried
	var s *state
	for _, v := range f.sessions.all {
		var err error
		s, err = f.stateFor(t.Context(), v)
		must.NoError(t, err)
	}
	var got []string
	for _, n := range s.nodes {
		for _, g := range n.GPUs {
			text := n.ID[:5] + " " + g.Label
			for _, p := range g.Parts {
				text += " " + p.Kind + ":" + strings.Repeat("x", p.Count)
			}
			got = append(got, text)
		}
	}
	must.Eq(t, []string{
		"gpu-a GPU 0 running:xxx reserved:x outside:xx unhealthy:xx",
		"gpu-a GPU 1 free:xxxxxxxx",
		"gpu-b GPU 0 outside:xxxxxxxx",
		"gpu-c GPU 0 running:x unhealthy:xxxxxxx", // it drains
		"gpu-d GPU 0 running:x dormant:xxxxxxx",   // it has no statistics
	}, got)
	must.Eq(t, part{Used: 1536, Limit: 3072, MemoryMiB: 3072}, part{
		Used: s.nodes[0].Parts[0].Used, Limit: s.nodes[0].Parts[0].Limit, MemoryMiB: s.nodes[0].Parts[0].MemoryMiB,
	})
}

// Names of others are text in each page.
func TestPages_HostileNames(t *testing.T) {
	b := signedIn(t, start(t, newNomad(t, all())), tokenOfAll)
	for _, path := range append(paths, missing...) {
		_, body := b.get(path)
		agenttest.CheckPage(t, body)
	}
}

// TestPages_Links follows every link of each page.
func TestPages_Links(t *testing.T) {
	b := signedIn(t, start(t, newNomad(t, all())), tokenOfResearch)
	for _, path := range paths {
		status, body := b.get(path)
		must.Eq(t, http.StatusOK, status, must.Sprint(path))
		root, err := html.Parse(strings.NewReader(body))
		must.NoError(t, err)
		for n := range root.Descendants() {
			for _, a := range n.Attr {
				if a.Key == "href" && strings.HasPrefix(a.Val, "/") {
					status, _ := b.get(a.Val)
					must.Eq(t, http.StatusOK, status, must.Sprintf("%s: %s", path, a.Val))
				}
			}
		}
	}
	for _, path := range missing {
		status, _ := b.get(path)
		must.Eq(t, http.StatusNotFound, status, must.Sprint(path))
	}
	_, body := b.get("/node?id=gpu-a-id")
	must.StrContains(t, body, "https://nomad.example.com:4646/ui/clients/gpu-a-id")
	must.StrContains(t, body, "https://nomad.example.com:4646/ui/allocations/aaaaaaaa-1")
	must.StrContains(t, body, "busy 83 %, memory in use 20480 MiB, 45 °C, 300 W")
	_, body = b.get(page.JobPage("research", "train"))
	must.StrContains(t, body, "https://nomad.example.com:4646/ui/jobs/train@research")
}

// TestWaiting counts what the viewer may not see as used.
func TestWaiting(t *testing.T) {
	b := signedIn(t, start(t, newNomad(t, all())), tokenOfResearch)
	status, body := b.get("/waiting")
	must.Eq(t, http.StatusOK, status)
	must.StrContains(t, body, `<a href="https://nomad.example.com:4646/ui/jobs/batch@research">research/batch</a></th>`)
	must.StrContains(t, body, `<td class="number">0</td><td class="number">8</td><td><div>train in namespace research (3)</div><div>allocations that the token may not see (2)</div>`)
	must.StrContains(t, body, `<td class="number">0</td><td class="number">8</td><td><div>not known (7)</div><div>train in namespace research (1)</div></td>`)
}

// TestQueries bounds what viewers cost Nomad: each its own list of allocations, and all together one list of nodes and one query for
// each node.
func TestQueries(t *testing.T) {
	const nodes = 40
	n := &nomad{statistics: map[string]any{}}
	for range nodes {
		g := gpuNode("gpu-"+strings.Repeat("x", len(n.nodes)), 1, 4)
		n.nodes, n.statistics[g.ID] = append(n.nodes, g), stats()
	}
	newNomad(t, n)
	f := start(t, n)
	var all sync.WaitGroup
	var b *browser
	for range 3 {
		b = signedIn(t, f, tokenOfAll)
		for range 5 {
			all.Go(func() {
				status, _ := b.get("/")
				must.Eq(t, http.StatusOK, status)
			})
		}
	}
	all.Wait()
	f.Close()
	b.get("/") // with the statistics that have just been queried
	f.Close()
	must.Eq(t, 3+3, n.asked("/v1/allocations")+n.asked("/v1/nodes")-1)
	must.Eq(t, nodes, n.asked("/v1/client/stats"))
	for range 5 {
		status, _ := openBrowser(t, f).get("/") // nobody
		must.Eq(t, http.StatusForbidden, status)
	}
	must.Eq(t, 3+3+1, n.asked("/v1/allocations")+n.asked("/v1/nodes")-1)
}

// TestNodes_WithoutAnswer shows a node that does not answer as far as it is known, and what it says when it does.
func TestNodes_WithoutAnswer(t *testing.T) {
	n := all()
	n.hangs = map[string]chan struct{}{"gpu-a-id": make(chan struct{})}
	n.statistics["gpu-c-id"] = "no object"
	f := start(t, newNomad(t, n))
	f.cluster.times.patience = time.Millisecond
	b := signedIn(t, f, tokenOfResearch)
	_, body := b.get("/node?id=gpu-a-id")
	must.StrContains(t, body, "Its statistics have not come yet.")
	must.StrContains(t, body, "2 of 8 nvidia/slice on GPU 0, not known")
	must.StrNotContains(t, body, "°C")
	close(n.hangs["gpu-a-id"])
	f.Close()
	_, body = b.get("/node?id=gpu-a-id")
	must.StrContains(t, body, "2 of 8 nvidia/slice on GPU 0, other")
	must.StrContains(t, body, "45 °C")
	_, body = b.get("/node?id=gpu-c-id")
	must.StrContains(t, body, "Its statistics are not known: read the node&#39;s statistics: json: cannot unmarshal")
	_, body = b.get("/node?id=gpu-d-id")
	must.StrContains(t, body, "500 (No path to node)")
}

// TestNodes_TooSlow gives a node up that does not answer in time.
func TestNodes_TooSlow(t *testing.T) {
	n := all()
	n.hangs = map[string]chan struct{}{"gpu-a-id": make(chan struct{})}
	f := start(t, newNomad(t, n))
	f.cluster.times.timeout = time.Millisecond
	_, body := signedIn(t, f, tokenOfResearch).get("/node?id=gpu-a-id")
	must.StrContains(t, body, "context deadline exceeded")
}

func TestNodes_Down(t *testing.T) {
	n := all()
	n.nodes[2].Status = api.NodeStatusDown // gpu-a
	_, body := signedIn(t, start(t, newNomad(t, n)), tokenOfResearch).get("/node?id=gpu-a-id")
	must.StrContains(t, body, "The node is down.")
	must.StrContains(t, body, "8 of 8 nvidia/slice on GPU 1, not available")
	must.StrNotContains(t, body, "Its statistics")
}

func TestMap_NoNodes(t *testing.T) {
	status, body := signedIn(t, start(t, newNomad(t, new(nomad))), tokenOfAll).get("/")
	must.Eq(t, http.StatusOK, status)
	must.StrContains(t, body, "No node has GPUs of Tranche's.")
}
