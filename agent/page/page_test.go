package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/net/html"

	"github.com/tranche-gpu/tranche/agent/agenttest"
	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/usage/bill"
)

// site returns a function that requests pages of a snapshot: it returns the status and the body.
func site(t *testing.T, s *monitor.Snapshot) func(path string) (int, string) {
	t.Helper()
	return siteWith(t, s, reporter(t))
}

// siteWith is site with another report of usage.
func siteWith(t *testing.T, s *monitor.Snapshot,
	usage func(context.Context, bill.By, time.Time, time.Time) (*bill.Report, error),
) func(path string) (int, string) {
	t.Helper()
	nomad, err := url.Parse("https://nomad.example.com:4646")
	must.NoError(t, err)
	pages, err := New(func(context.Context) *monitor.Snapshot { return s },
		Options{Node: "node-1 " + agenttest.Hostile, Version: "v1.2.3", NomadUI: nomad, Usage: usage})
	must.NoError(t, err)
	mux := http.NewServeMux()
	pages.Register(mux)
	return func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
}

// paths are one of each page.
var paths = []string{"/", "/gpu/" + agenttest.UUID(0), "/gpu/" + agenttest.UUID(1), "/gpu/" + agenttest.UUID(2),
	"/gpu/" + agenttest.UUID(3), "/claim/aaaaaaaa", "/claim/bbbbbbbb", "/claim/cccccccc", "/claim/eeeeeeee",
	"/usage/job/2026-11",
	"/claim/" + url.PathEscape(agenttest.Hostile), "/gpu/" + url.PathEscape(agenttest.Hostile), "/" + url.PathEscape(agenttest.Hostile)}

// TestPages_HostileNames parses each page as a browser does: names of others are text in it, and add no element, attribute,
// line or order to a terminal.
func TestPages_HostileNames(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			_, body := request(path)
			must.StrNotContains(t, body, "\x1b")
			must.StrNotContains(t, body, "\u202e")
			must.StrContains(t, body, "alert(1)") // the name is there
			root, err := html.Parse(strings.NewReader(body))
			must.NoError(t, err)
			for n := range root.Descendants() {
				if n.Type != html.ElementNode {
					continue
				}
				must.NotEq(t, "script", n.Data)
				for _, a := range n.Attr {
					must.False(t, strings.HasPrefix(a.Key, "on") || a.Key == "style", must.Sprintf("<%s %s>", n.Data, a.Key))
					if a.Key == "href" || a.Key == "src" {
						must.True(t, strings.HasPrefix(a.Val, "/") || strings.HasPrefix(a.Val, "#") ||
							strings.HasPrefix(a.Val, "https://nomad.example.com:4646/ui/"), must.Sprint(a.Val))
					}
				}
			}
		})
	}
}

// TestPages_Links follows every link of each page.
func TestPages_Links(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for _, path := range paths[:10] {
		status, body := request(path)
		must.Eq(t, http.StatusOK, status, must.Sprint(path))
		root, err := html.Parse(strings.NewReader(body))
		must.NoError(t, err)
		ids := map[string]bool{}
		var links []string
		for n := range root.Descendants() {
			for _, a := range n.Attr {
				switch {
				case a.Key == "id":
					must.False(t, ids[a.Val], must.Sprintf("%s: two elements have the ID %s", path, a.Val))
					ids[a.Val] = true
				case a.Key == "href":
					links = append(links, a.Val)
				case a.Key == "fill" && strings.HasPrefix(a.Val, "url(#"):
					links = append(links, strings.TrimSuffix(strings.TrimPrefix(a.Val, "url("), ")"))
				}
			}
		}
		must.SliceNotEmpty(t, links)
		for _, link := range links {
			switch {
			case strings.HasPrefix(link, "#"):
				must.True(t, ids[link[1:]], must.Sprintf("%s: nothing has the ID %s", path, link))
			case strings.HasPrefix(link, "/") && link != "/metrics":
				status, _ := request(link)
				must.Eq(t, http.StatusOK, status, must.Sprintf("%s: %s", path, link))
			}
		}
	}
}

// TestBars_ToScale compares the blocks of a bar with the memory that they stand for.
func TestBars_ToScale(t *testing.T) {
	s := agenttest.Snapshot()
	half := *s.GPUs[0].MemoryBytes / 2
	s.GPUs[1].MemoryBytes = &half
	bars := barsOf(s)
	must.Eq(t, 100, bars[0].Percent)
	must.Eq(t, 50, bars[1].Percent)
	for _, b := range bars {
		at := 0.0
		for _, k := range b.Blocks {
			must.InDelta(t, at, k.X, 0.001)
			at = k.X + k.Width
		}
		must.InDelta(t, 100, at, 0.001)
	}
	byKind := map[string]float64{}
	for _, k := range bars[0].Blocks {
		byKind[k.Kind] += k.Width
	}
	for kind, gibibytes := range map[string]float64{"running": 48, "reserved": 8, "dormant": 16, "outside": 4, "driver": 0.5, "free": 63.5} {
		must.InDelta(t, 100*gibibytes/140, byKind[kind], 0.001, must.Sprint(kind))
	}
	must.InDelta(t, 100*20.0/32, bars[0].Blocks[0].Used, 0.001)
	must.Eq(t, "unhealthy", bars[1].Blocks[len(bars[1].Blocks)-1].Kind)
	must.Eq(t, []block{{Kind: "unhealthy", Width: 100, Label: "does not answer", Text: "The GPU does not answer."}}, bars[2].Blocks)
}

// TestPages_Unknown says of what is unknown that it is.
func TestPages_Unknown(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	_, body := request("/gpu/" + agenttest.UUID(2))
	must.StrContains(t, body, "<dt>Power</dt><dd>-</dd>")
	must.StrContains(t, body, "<dt>Memory</dt><dd>-</dd>")
	must.StrNotContains(t, body, "0 W")
}

// TestPages_Shares says what governed claims had of their GPU's time, and "-" where no governor does.
func TestPages_Shares(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	known := `<td class="number">30%</td><td class="number">50%</td><td>high</td><td class="number">31%</td><td class="number">12.5 s</td>` +
		`<td class="number">3.2 s</td><td class="number">2</td><td class="number">1</td></tr>`
	unknown := `<td class="number">33.3%</td><td class="number">100%</td><td>normal</td>` + strings.Repeat(`<td class="number">-</td>`, 5)
	for path, want := range map[string]string{
		"/gpu/" + agenttest.UUID(0): known, "/claim/aaaaaaaa": known,
		"/gpu/" + agenttest.UUID(3): unknown, "/claim/eeeeeeee": unknown,
	} {
		_, body := request(path)
		must.StrContains(t, body, want)
	}
	_, body := request("/claim/aaaaaaaa")
	must.StrContains(t, body, "Its share does not hold for processes that have not joined: <span")
	must.StrContains(t, body, "</span> (4712)</p>")
	_, body = request("/claim/bbbbbbbb")
	must.StrNotContains(t, body, "Compute share")
}

// TestPages_Refresh bounds how often a page is loaded again.
func TestPages_Refresh(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for query, want := range map[string]string{
		"": "", "?refresh=15": `content="15"`, "?refresh=1": `content="5"`, "?refresh=-1": "", "?refresh=x;url=http://a": "",
		"?refresh=99999": `content="3600"`,
	} {
		_, body := request("/" + query)
		must.Eq(t, want != "", strings.Contains(body, `http-equiv="refresh"`), must.Sprint(query))
		must.StrContains(t, body, want)
	}
}

// TestClaim_Advice names fewer slices only if the peak would fit.
func TestClaim_Advice(t *testing.T) {
	s := agenttest.Snapshot()
	must.Eq(t, "The peak so far, and 10 % more, would fit into 27 of its 32 slices.", advice(s.Claims[0]))
	s.Claims[0].Usage.PeakBytes = 31 << 30
	must.Eq(t, "", advice(s.Claims[0]))
	must.Eq(t, "", advice(s.Claims[1])) // its usage is unknown
}
