package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"net/http"
	"net/http/httptest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/agent/agenttest"
	"github.com/tranche-gpu/tranche/agent/monitor"
)

func collector(s *monitor.Snapshot) *Collector {
	return New(func(context.Context) *monitor.Snapshot { return s }, "v1.2.3")
}

// scraped returns what Prometheus gets.
func scraped(t *testing.T, s *monitor.Snapshot) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	must.NoError(t, registry.Register(collector(s)))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	must.NoError(t, err)
	must.Eq(t, 200, w.Code, must.Sprint(string(body)))
	return string(body)
}

// TestCollect_Golden compares all metrics of a node on which everything occurs with a file, names of others escaped.
func TestCollect_Golden(t *testing.T) {
	const file = "testdata/metrics.txt"
	got := scraped(t, agenttest.Snapshot())
	if os.Getenv("TRANCHE_UPDATE_GOLDEN") != "" {
		must.NoError(t, os.MkdirAll("testdata", 0o755))
		must.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must.NoError(t, err)
	must.Eq(t, string(want), got, must.Sprintf("set TRANCHE_UPDATE_GOLDEN=1 to write %s", file))
	for _, m := range All() {
		must.StrContains(t, got, "\n"+m.Name, must.Sprintf("nothing of the fixture has the metric %s", m.Name))
	}
}

// TestCollect_UnknownIsLeftOut scrapes a node whose driver, ledger and health are unknown: not one number may be invented.
func TestCollect_UnknownIsLeftOut(t *testing.T) {
	unknown := &monitor.Snapshot{
		Errors: map[monitor.Source]string{monitor.SourceNVML: "no driver", monitor.SourceLedger: "no ledger"},
		GPUs:   []monitor.GPU{{UUID: "GPU-0", Mode: "slice", Error: "no driver", Slices: &monitor.Slices{SliceBytes: 1 << 30}}},
	}
	for line := range strings.Lines(scraped(t, unknown)) {
		name, _, _ := strings.Cut(line, "{")
		switch strings.Fields(name)[0] {
		case "#", "tranche_agent_info", "tranche_source_up", "tranche_ledger_problem_files", "tranche_gpu_info",
			"tranche_gpu_slice_size_bytes":
		case "tranche_gpu_up", "tranche_gpu_healthy":
			must.StrHasSuffix(t, " 0\n", line)
		default:
			t.Errorf("a value of what is unknown: %s", line)
		}
	}
}

// TestCollect_NoSeriesOfSlices counts series with few and with many slices.
func TestCollect_NoSeriesOfSlices(t *testing.T) {
	few, many := agenttest.Snapshot(), agenttest.Snapshot()
	for range 1000 {
		many.Claims[0].Slices = append(many.Claims[0].Slices, fmt.Sprint("slice-", len(many.Claims[0].Slices)))
	}
	must.Eq(t, strings.Count(scraped(t, few), "\n"), strings.Count(scraped(t, many), "\n"))
}

// TestPromtool has Prometheus's own tool check the metrics, and the alerts with their tests.
func TestPromtool(t *testing.T) {
	dir := filepath.Join("..", "..", "packaging", "monitoring")
	promtool(t, dir, scraped(t, agenttest.Snapshot()), "check", "metrics")
	promtool(t, dir, "", "check", "rules", "alerts.yml")
	promtool(t, dir, "", "test", "rules", "alerts_test.yml")
}

// TestDashboard_IsWhole checks the dashboard: its form, that its queries are PromQL, and that they and those of the alerts ask for
// metrics and labels that there are.
func TestDashboard_IsWhole(t *testing.T) {
	dir := filepath.Join("..", "..", "packaging", "monitoring")
	content, err := os.ReadFile(filepath.Join(dir, "dashboard.json"))
	must.NoError(t, err)
	var dashboard struct {
		UID           string `json:"uid"`
		Title         string `json:"title"`
		SchemaVersion int    `json:"schemaVersion"`
		Templating    struct {
			List []struct {
				Name string `json:"name"`
			} `json:"list"`
		} `json:"templating"`
		Panels []struct {
			ID      int                            `json:"id"`
			Title   string                         `json:"title"`
			Type    string                         `json:"type"`
			GridPos struct{ X, Y, W, H int }       `json:"gridPos"`
			Targets []struct{ RefID, Expr string } `json:"targets"`
		} `json:"panels"`
	}
	must.NoError(t, json.Unmarshal(content, &dashboard))
	must.Eq(t, "tranche", dashboard.UID)
	must.Positive(t, dashboard.SchemaVersion)
	must.Len(t, 2, dashboard.Templating.List)
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for _, p := range dashboard.Panels {
		must.False(t, ids[p.ID], must.Sprintf("two panels have the ID %d", p.ID))
		ids[p.ID] = true
		must.NotEq(t, "", p.Title)
		must.SliceContains(t, []string{"stat", "timeseries", "table"}, p.Type)
		must.Between(t, 1, p.GridPos.X+p.GridPos.W, 24)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				must.Eq(t, "", taken[[2]int{x, y}], must.Sprintf("the panel %q lies over another", p.Title))
				taken[[2]int{x, y}] = p.Title
			}
		}
		must.SliceNotEmpty(t, p.Targets)
		for _, target := range p.Targets {
			rules += fmt.Sprintf("  - record: a:b\n    labels: {n: '%d %s'}\n    expr: %q\n", p.ID, target.RefID,
				strings.ReplaceAll(target.Expr, "$instance", ".*"))
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	must.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	promtool(t, dir, "", "check", "rules", file)
	alerts, err := os.ReadFile(filepath.Join(dir, "alerts.yml"))
	must.NoError(t, err)
	exist := map[string]bool{}
	for _, m := range All() {
		exist[m.Name] = true
	}
	for _, name := range regexp.MustCompile(`tranche_[a-z_]+`).FindAllString(rules+string(alerts), -1) {
		must.True(t, exist[name], must.Sprintf("the dashboard or an alert asks for %s, which is no metric", name))
	}
}

// TestDocs_ListMetrics compares docs/metrics.md with the metrics.
func TestDocs_ListMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	must.NoError(t, err)
	var rows, want []string
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `tranche_") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	for _, m := range All() {
		labels := "-"
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |", m.Name, m.Type(), labels, strings.TrimSuffix(m.Help, ".")))
	}
	must.Eq(t, strings.Join(want, "\n"), strings.Join(rows, "\n"))
}

// promtool runs Prometheus's tool in a directory.
func promtool(t *testing.T, dir, stdin string, args ...string) {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("TRANCHE_REQUIRE_ROOT") != "" {
			t.Fatal("promtool is missing, which is in Debian's package prometheus")
		}
		t.Skip("promtool is missing, which is in Debian's package prometheus")
	}
	cmd := exec.Command(tool, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
}
