//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// rights are those that the unit of systemd leaves the agent.
var rights = regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`)

// agentURL starts `tranche agent` on a node with the rights that it has as a service, and returns where it listens. The environment is
// in addition to the test's.
func agentURL(t *testing.T, n *node.Node, env ...string) string {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(build, "../packaging/systemd/tranche-agent.service"))
	must.NoError(t, err)
	set := rights.FindStringSubmatch(string(unit))
	must.Len(t, 2, set)
	bounding := "-all," + strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(set[1]), "cap_", "+"), " ", ",")
	cmd := exec.Command("setpriv", "--bounding-set", bounding, "--no-new-privs", filepath.Join(build, "bin/tranche"), "agent", "--listen", "127.0.0.1:0", "--driver-root", n.DriverRoot(),
		"--state-dir", n.StateDir(), "--run-dir", n.RunDir(), "--nomad-ui", n.Agent.Address)
	cmd.Env = append(append(os.Environ(), n.Sim.Env()...), env...)
	log, err := cmd.StderrPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	addresses := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			t.Log(lines.Text())
			if _, address, ok := strings.Cut(lines.Text(), "listening: address="); ok {
				addresses <- address
			}
		}
		close(addresses)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		for range addresses { // until it has ended
		}
	})
	address, ok := <-addresses
	must.True(t, ok, must.Sprint("the agent ended"))
	return strings.TrimSuffix(address, "/")
}

// read returns a page.
func read(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	must.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.NoError(t, err)
	must.Eq(t, http.StatusOK, response.StatusCode, must.Sprint(string(body)))
	return string(body)
}

// promServer is a real Prometheus that scrapes an agent.
type promServer struct{ url string }

func startPrometheus(t *testing.T, n *node.Node, target string) *promServer {
	t.Helper()
	dir := filepath.Join(n.Dir, "prometheus")
	must.NoError(t, os.MkdirAll(dir, 0o755))
	scrape, err := os.ReadFile(filepath.Join(build, "../packaging/monitoring/prometheus.yml"))
	must.NoError(t, err)
	config := strings.ReplaceAll(string(scrape), "127.0.0.1:9760", strings.TrimPrefix(target, "http://"))
	config = strings.ReplaceAll(config, "alerts.yml", filepath.Join(build, "../packaging/monitoring/alerts.yml"))
	config = strings.ReplaceAll(config, "15s", "1s")
	file := filepath.Join(dir, "prometheus.yml")
	must.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	log, err := os.Create(filepath.Join(dir, "log"))
	must.NoError(t, err)
	cmd := exec.Command("prometheus", "--config.file", file, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", "127.0.0.1:9090")
	cmd.Stdout, cmd.Stderr = log, log
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	return &promServer{"http://127.0.0.1:9090"}
}

// ask calls Prometheus's API.
func (p *promServer) ask(ctx context.Context, path string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var body struct{ Data json.RawMessage }
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		return err
	}
	return json.Unmarshal(body.Data, answer)
}

// wait asks a query again until it has one value, which is returned; if want is given, until it has that one. Prometheus has no
// event for a scrape.
func (p *promServer) wait(t *testing.T, query string, want ...float64) float64 {
	t.Helper()
	ctx := deadline(t)
	for {
		var answer struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
		err := p.ask(ctx, "/api/v1/query?query="+url.QueryEscape(query), &answer)
		last := fmt.Sprint(answer.Result, err)
		if err == nil && len(answer.Result) == 1 {
			value, err := strconv.ParseFloat(fmt.Sprint(answer.Result[0].Value[1]), 64)
			must.NoError(t, err)
			if len(want) == 0 || value == want[0] {
				return value
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: want %v, got %s", query, want, last)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// withLongKernels has kernels take so long that a program which launches one after another keeps the GPU busy.
func withLongKernels(t *testing.T) func(*node.Config) {
	return func(c *node.Config) {
		text, err := os.ReadFile(c.Topology)
		must.NoError(t, err)
		c.Topology = filepath.Join(t.TempDir(), "long-kernels.conf")
		longer := strings.Replace(string(text), "kernel_us = 20\n", "kernel_us = 2000\n", 1)
		must.NotEq(t, string(text), longer)
		must.NoError(t, os.WriteFile(c.Topology, []byte(longer), 0o644))
	}
}

// token is what a claim token looks like.
var token = regexp.MustCompile(`[0-9a-f]{32}`)

// TestMonitoring_Prometheus has a real Prometheus scrape the agent of a real node, and compares what it then knows with the
// simulator's record.
func TestMonitoring_Prometheus(t *testing.T) {
	n := startNode(t, withLongKernels(t))
	agent := agentURL(t, n)
	start(t, n, task{job: "train", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(8, 1)}})
	alloc := running(t, n, "train")
	saysLine(t, n, alloc.ID, `"computing"`)
	prometheus := startPrometheus(t, n, agent)

	job := fmt.Sprintf(`* on (instance, claim) group_left () tranche_claim_info{namespace="default", nomad_job="train", group="g", `+
		`task="t", alloc_id=%q, verified="true", gpu="1"}`, alloc.ID)
	for _, g := range held(t, n, alloc.ID) {
		prometheus.wait(t, "tranche_claim_memory_used_bytes "+job, float64(g.Bytes))
		prometheus.wait(t, "tranche_claim_memory_peak_bytes "+job, float64(g.PeakBytes))
	}
	prometheus.wait(t, "tranche_claim_memory_limit_bytes "+job, 8*gib)
	prometheus.wait(t, `(tranche_claim_state{state="running"}) `+job, 1)
	prometheus.wait(t, "(tranche_claim_utilization_ratio > bool 0.1) "+job, 1)
	must.Positive(t, prometheus.wait(t, "tranche_claim_refused_allocations_total "+job))

	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	prometheus.wait(t, `sum(tranche_gpu_slices{gpu="1"})`, 140)
	prometheus.wait(t, `tranche_gpu_slices{gpu="1", state="running"}`, 8)
	prometheus.wait(t, `tranche_gpu_slices{gpu="0", state="free"}`, 140)
	prometheus.wait(t, `tranche_gpu_memory_bytes{gpu="1"}`, float64(record.GPUs[1].MemoryBytes))
	prometheus.wait(t, `tranche_gpu_memory_reserved_bytes{gpu="1"}`, 8*gib)
	prometheus.wait(t, `tranche_gpu_memory_outside_bytes{gpu="1"}`, 0)
	prometheus.wait(t, `count(tranche_source_up == 1)`, 6)
	prometheus.wait(t, `count(tranche_gpu_healthy == 1)`, 2)

	order(t, n, [][]string{{"xid", "0", "13"}})
	prometheus.wait(t, `tranche_gpu_xid_errors_total{gpu="0", xid="13"}`, 1)

	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	prometheus.wait(t, "count(up{job=\"tranche\"} == 1)", 1)
	for ctx := deadline(t); ; { // until each was evaluated once
		must.NoError(t, prometheus.ask(ctx, "/api/v1/rules", &rules))
		must.Len(t, 1, rules.Groups)
		unknown := 0
		for _, r := range rules.Groups[0].Rules {
			if r.Health == "unknown" {
				unknown++
				continue
			}
			must.Eq(t, "ok", r.Health, must.Sprint(r))
		}
		if unknown == 0 {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the rules were not evaluated: %v", rules)
		case <-time.After(200 * time.Millisecond):
		}
	}

	check := exec.Command("promtool", "check", "metrics")
	scraped := read(t, agent+"/metrics")
	check.Stdin = strings.NewReader(scraped)
	out, err := check.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	claims, err := n.Claims(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	for _, page := range []string{"/", "/gpu/" + record.GPUs[1].UUID, "/claim/" + claims[0].ID} {
		scraped += read(t, agent+page)
	}
	must.Eq(t, "", token.FindString(scraped))
	must.StrNotContains(t, scraped, probeImage)

	must.NoError(t, n.StopJob(deadline(t), "train"))
	prometheus.wait(t, `tranche_gpu_slices{gpu="1", state="running"}`, 0)
	checkUsage(t, n, agent, "train", claims[0].ID)
}
