package page

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/net/html"

	"github.com/tranche-gpu/tranche/agent/agenttest"
	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/timeline"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/internal/explain"
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
		Options{Node: "node-1 " + agenttest.Hostile, Version: "v1.2.3", NomadUI: nomad, Usage: usage, Waiting: waiting, Timeline: timelineFor(s)})
	must.NoError(t, err)
	mux := http.NewServeMux()
	pages.Register(mux)
	return func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
}

// timelineFor returns a time line of two hours up to a snapshot, in which a claim with a hostile name has ended.
func timelineFor(s *monitor.Snapshot) *timeline.Timeline {
	all := new(timeline.Timeline)
	for at := 2 * time.Hour; at >= 0; at -= time.Minute {
		seen := *s
		seen.Time = s.Time.Add(-at)
		if at > 30*time.Minute {
			ended := *s.Claims[0]
			ended.Claim = &claim.Claim{ID: "ffffffff", GPU: s.Claims[0].GPU}
			ended.Workload.Job = agenttest.Hostile
			seen.Claims = append(slices.Clone(s.Claims), &ended)
		}
		all.Observe(&seen)
	}
	return all
}

// paths are one of each page; missing lead to none.
var (
	paths = []string{"/", "/gpu/" + agenttest.UUID(0), "/gpu/" + agenttest.UUID(1), "/gpu/" + agenttest.UUID(2),
		"/gpu/" + agenttest.UUID(3), "/gpu/" + agenttest.UUID(0) + "?hours=24", "/claim/aaaaaaaa", "/claim/bbbbbbbb", "/claim/cccccccc",
		"/claim/eeeeeeee", "/job?name=train&namespace=research", hostileJob, "/idle", "/waiting", "/usage/job/2026-11"}
	missing = []string{"/claim/" + url.PathEscape(agenttest.Hostile), "/gpu/" + url.PathEscape(agenttest.Hostile),
		"/" + url.PathEscape(agenttest.Hostile), "/job?name=" + url.QueryEscape(agenttest.Hostile)}
	hostileJob = "/job?" + url.Values{"namespace": {agenttest.Hostile}, "name": {agenttest.Hostile}}.Encode()
)

// Names of others are text in each page.
func TestPages_HostileNames(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for _, path := range slices.Concat(paths, missing) {
		t.Run(path, func(t *testing.T) {
			_, body := request(path)
			must.StrContains(t, body, "alert(1)") // the name is there
			agenttest.CheckPage(t, body)
		})
	}
}

// TestPages_Links follows every link of each page.
func TestPages_Links(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for _, path := range paths {
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
	must.Eq(t, []Block{{Kind: "unhealthy", Width: 100, Label: "does not answer", Text: "The GPU does not answer."}}, bars[2].Blocks)
}

// TestPages_Unknown says of what is unknown that it is.
func TestPages_Unknown(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	_, body := request("/gpu/" + agenttest.UUID(2))
	must.StrContains(t, body, "<dt>Power</dt><dd>-</dd>")
	must.StrContains(t, body, "<dt>Memory</dt><dd>-</dd>")
	must.StrNotContains(t, body, "0 W")
}

// TestPages_LongMessages shows the end of an error, where its remedy is.
func TestPages_LongMessages(t *testing.T) {
	s := agenttest.Snapshot()
	s.Errors[monitor.SourceNVML] = "no driver in " + strings.Repeat("/usr/lib/libnvidia-ml.so.1, ", 30) + ": install it"
	_, body := site(t, s)("/")
	must.StrContains(t, body, ", : install it")
}

// TestPages_Xids lists errors by their numbers.
func TestPages_Xids(t *testing.T) {
	s := agenttest.Snapshot()
	s.GPUs[0].Xids = map[uint64]uint64{119: 1, 8: 2, 79: 3, 13: 4}
	_, body := site(t, s)("/gpu/" + agenttest.UUID(0))
	must.RegexMatch(t, regexp.MustCompile(`(?s)>8</th>.*>13</th>.*>79</th>.*>119</th>`), body)
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

// TestPages_Reload keeps what the page is of.
func TestPages_Reload(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for path, want := range map[string]string{
		"/": `href="/?refresh=15"`, "/job?name=train&namespace=research&x=y": `href="/job?name=train&amp;namespace=research&amp;refresh=15"`,
		"/gpu/" + agenttest.UUID(0) + "?hours=24":                 `href="/gpu/` + agenttest.UUID(0) + `?hours=24&amp;refresh=15"`,
		"/job?name=train&namespace=research&refresh=15":           `href="/job?name=train&amp;namespace=research"`,
		"/gpu/" + agenttest.UUID(0) + "?refresh=15&hours=nothing": `href="/gpu/` + agenttest.UUID(0) + `?hours=1"`,
	} {
		_, body := request(path)
		must.StrContains(t, body, want)
	}
}

// TestJob names what the job's tasks need, and which claims only say that they are the job's.
func TestJob(t *testing.T) {
	s := agenttest.Snapshot()
	other := *s.Claims[0]
	other.Claim = &claim.Claim{ID: "ffffffff", GPU: s.Claims[0].GPU, Mode: claim.ModeSlice, SliceBytes: 1 << 30, Slices: make([]string, 40), LimitBytes: 40 << 30}
	other.Workload.Job, other.Workload.ParentJob, other.Workload.Verified = "train/dispatch-1", "train", false
	use := *s.Claims[0].Usage
	use.PeakBytes, use.Refused = 30<<30, 0
	other.Usage = &use
	s.Claims[0].Usage.Refused = 0
	s.Claims = append(s.Claims, &other)
	request := site(t, s)
	status, body := request("/job?name=train&namespace=research")
	must.Eq(t, http.StatusOK, status)
	must.StrContains(t, body, `gpu/trainer</th><td class="number">2</td><td class="number">40</td><td class="number">30 GiB</td><td class="number">0</td>`+
		`<td>The peak so far, and 10% more, would fit into 33 of its 40 slices.</td>`)
	must.StrContains(t, body, "1 of its 2 claims are not verified")
	must.StrContains(t, body, "https://nomad.example.com:4646/ui/jobs/train@research")
	must.StrContains(t, body, `aria-label="20 GiB used, peak 30 GiB, limit 40 GiB"`)
	for _, none := range []string{"/job", "/job?name=", "/job?name=train", "/job?name=train%2Fdispatch-1&namespace=research"} {
		status, _ = request(none)
		must.Eq(t, http.StatusNotFound, status, must.Sprint(none))
	}
}

// TestJob_AnyName has a page for each name that Nomad takes for a job.
func TestJob_AnyName(t *testing.T) {
	for _, name := range []string{"..", ".", "a/b", "a?b#c", "a&name=b", "%2e%2e", "ä+b"} {
		s := agenttest.Snapshot()
		s.Claims[0].Workload.Job = name
		request := site(t, s)
		_, body := request("/claim/aaaaaaaa")
		root, err := html.Parse(strings.NewReader(body))
		must.NoError(t, err)
		found := false
		for n := range root.Descendants() {
			for _, a := range n.Attr {
				if found = found || a.Key == "href" && strings.HasPrefix(a.Val, "/job?"); a.Key == "href" && strings.HasPrefix(a.Val, "/job?") {
					status, page := request(a.Val)
					must.Eq(t, http.StatusOK, status, must.Sprint(a.Val))
					must.StrContains(t, page, `aria-label="20 GiB used, peak 24 GiB, limit 32 GiB"`)
				}
			}
		}
		must.True(t, found, must.Sprint(name))
	}
}

// TestIdle has the claim that is idle for the longest time first, and takes none to be idle of which that is not known.
func TestIdle(t *testing.T) {
	s := agenttest.Snapshot()
	request := site(t, s)
	for _, path := range []string{"/idle", "/claim/eeeeeeee"} {
		_, body := request(path)
		must.StrContains(t, body, s.Claims[4].IdleTooLong.String()[:30])
	}
	s.Claims[1].Idleness, s.Claims[4].Idleness = monitor.Idleness{}, monitor.Idleness{Activity: monitor.ActivityUnknown}
	_, body := request("/idle")
	must.StrContains(t, body, "No claim is idle.")
	must.StrContains(t, body, "<p>1 active.</p>")
	hours, minutes := 2*time.Hour, 3*time.Minute
	s.Claims[0].Idleness = monitor.Idleness{Activity: monitor.ActivityIdleWithMemory, Idle: &minutes, LastActive: s.Time.Add(-minutes)}
	s.Claims[1].Idleness = monitor.Idleness{Activity: monitor.ActivityIdleWithoutMemory, Idle: &hours}
	s.Claims[1].IdleTooLong = &idle.Condition{State: idle.Held, Since: s.Time.Add(-hours), Note: "because " + agenttest.Hostile}
	_, body = request("/idle")
	must.StrContains(t, body, "Idle claims reserve 48 GiB.")
	must.StrContains(t, body, "<td>idle with memory for 3m0s</td><td>2026-11-26 11:57:00 UTC</td>")
	must.StrContains(t, body, "idle since 2026-11-26 10:00:00 UTC, and not stopped: because &lt;/title&gt;")
	long, short := strings.Index(body, "idle without memory for 2h0m0s"), strings.Index(body, "idle with memory for 3m0s")
	must.Between(t, 1, long, short)
	must.Greater(t, strings.Index(body, "Not known"), strings.Index(body, `"/claim/eeeeeeee"`))
	must.StrNotContains(t, body, "cccccccc") // it does not run

	// Who wastes most comes first, by job and namespace.
	must.StrContains(t, body, `research/train</a></th><td class="number">1</td><td class="number">22.5</td></tr>`)
	must.StrContains(t, body, `<th scope="row" class="name">research</th><td class="number">1</td><td class="number">22.5</td></tr>`)
	must.Less(t, strings.LastIndex(body, "22.5"), strings.LastIndex(body, "31.2"))
}

// TestMap_WhoWastes puts the claims with the most unused memory first, has dormant ones apart, and the states that all pages have.
func TestMap_WhoWastes(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for _, path := range []string{"/", "/gpu/" + agenttest.UUID(0)} {
		_, body := request(path)
		_, table, _ := strings.Cut(body, "<h2>Claims</h2>")
		wastes, uses, dormant := strings.Index(table, "/claim/bbbbbbbb"), strings.Index(table, "/claim/aaaaaaaa"), strings.Index(table, "/claim/dddddddd")
		must.Between(t, 1, wastes, uses)
		must.Between(t, uses, strings.Index(table, "<details><summary>1 dormant"), dormant)
		must.StrContains(t, table, `<td>held</td>`)
		must.StrContains(t, table[dormant:], `<td class="number">11 GiB</td>`, must.Sprint("its peak"))
	}
}

// waiting returns a job that has claims on this node and waits for more, and one with a hostile name.
func waiting(context.Context) (*explain.Queue, error) {
	hostile := explain.Group{
		Name: agenttest.Hostile, Verdict: explain.Never, Reason: "no node; " + agenttest.Hostile,
		Requests: []explain.Request{{Task: agenttest.Hostile, Device: "nvidia/" + agenttest.Hostile, Count: 200}},
	}
	return &explain.Queue{
		Groups: []explain.Blocked{
			{Job: "train", Namespace: "research", Tried: agenttest.Time, Group: explain.Group{Name: "gpu", Verdict: explain.Waits, Reason: "too little is free"}},
			{Job: agenttest.Hostile, Namespace: agenttest.Hostile, Tried: agenttest.Time, Group: hostile},
			{Job: "elsewhere", Namespace: "default"},
		},
		Others: 3, Left: 4,
		Devices: []explain.Device{{
			Node: agenttest.Hostile, Name: agenttest.Hostile, Total: 140, Free: 2, Used: []explain.Use{{By: agenttest.Hostile, Count: 138}},
			Unhealthy: []explain.Use{{By: agenttest.Hostile, Count: 1}},
		}},
	}, nil
}

// TestWaiting says what jobs lack, and leads to those that have claims here.
func TestWaiting(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	status, body := request("/waiting")
	must.Eq(t, http.StatusOK, status)
	must.StrContains(t, body, `<a href="https://nomad.example.com:4646/ui/jobs/train@research">research/train</a> (<a href="/job?name=train&amp;namespace=research">its claims here</a>)`)
	must.StrContains(t, body, "<strong>waits</strong><div>too little is free</div></td><td>2026-11-26 12:00:00 UTC</td>")
	must.StrContains(t, body, "<strong>never</strong><div>no node</div><div>")
	must.StrContains(t, body, `<td class="number">2</td><td class="number">140</td>`)
	must.StrContains(t, body, "3 more groups wait, and request no device.")
	must.StrContains(t, body, "4 more jobs wait, and were not looked at.")
	must.Eq(t, 2, strings.Count(body, ">its claims here</a>"))
}

// TestWaiting_NotKnown says why Nomad cannot be queried, and has no page where it is not to be.
func TestWaiting_NotKnown(t *testing.T) {
	s := agenttest.Snapshot()
	for _, c := range []struct {
		queue  func(context.Context) (*explain.Queue, error)
		status int
		want   string
	}{
		{func(context.Context) (*explain.Queue, error) { return nil, errors.New("refused " + agenttest.Hostile) }, http.StatusBadGateway, "Nomad cannot be queried: refused "},
		{func(context.Context) (*explain.Queue, error) { return new(explain.Queue), nil }, http.StatusOK, "No group waits for a device."},
		{nil, http.StatusNotFound, "There is no such page."},
	} {
		pages, err := New(func(context.Context) *monitor.Snapshot { return s }, Options{Waiting: c.queue})
		must.NoError(t, err)
		mux := http.NewServeMux()
		pages.Register(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/waiting", nil))
		must.Eq(t, c.status, w.Code)
		must.StrContains(t, w.Body.String(), c.want)
		must.StrNotContains(t, w.Body.String(), "<script>")
		must.Eq(t, c.queue != nil, strings.Contains(w.Body.String(), `href="/waiting"`))
	}
}

// TestTimeline draws what was seen in the last hour or day.
func TestTimeline(t *testing.T) {
	s := agenttest.Snapshot()
	gpu := "/gpu/" + agenttest.UUID(0)
	_, body := site(t, s)(gpu)
	must.StrContains(t, body, `<th scope="row">the GPU</th><td class="name"></td><td class="time">11:01 to 12:00</td><td class="number">37%</td>`)
	must.StrContains(t, body, `<a href="/claim/aaaaaaaa">aaaaaaaa</a></th>`)
	must.StrContains(t, body, `<th scope="row">ffffffff</th>`) // it has ended, and has no page
	must.StrContains(t, body, `<td class="time">11:01 to 11:30</td><td class="number">25%</td>`)
	must.StrContains(t, body, `V75H29V100z" class="used"/>`)
	must.StrNotContains(t, body, `dddddddd</a></th><td class="name">-</td><td class="time">`) // it is dormant
	_, body = site(t, s)(gpu + "?hours=24")
	must.StrContains(t, body, "<span>12:10</span><span>00:10</span><span>12:00</span>")
	must.StrContains(t, body, `<td class="time">10:00 to 11:30</td>`)
	must.StrContains(t, body, `viewBox="0 0 144 100"`)
}

// TestClaim_Advice names fewer slices only if the peak would fit, and nothing was refused.
func TestClaim_Advice(t *testing.T) {
	s := agenttest.Snapshot()
	must.Eq(t, "Allocations were refused: more than 32 slices may be needed.", adviceFor(s.Claims[0]))
	s.Claims[0].Usage.Refused = 0
	must.Eq(t, "The peak so far, and 10% more, would fit into 27 of its 32 slices.", adviceFor(s.Claims[0]))
	s.Claims[0].Usage.PeakBytes = 31 << 30
	must.Eq(t, "", adviceFor(s.Claims[0]))
	must.Eq(t, "", adviceFor(s.Claims[1])) // its usage is unknown
}
