// Package agent assembles `tranche agent`: a monitor of this node, and the servers of its pages and metrics.
package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tranche-gpu/tranche/agent/metrics"
	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/agent/page"
)

// maxScrapes is how many scrapes are answered at once.
const maxScrapes = 4

// Handler returns what the agent serves.
func Handler(m *monitor.Monitor, o page.Options) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		metrics.New(m.Snapshot, o.Version), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	pages, err := page.New(m.Snapshot, o)
	if err != nil {
		return nil, err
	}
	pages.Register(mux)
	return mux, nil
}
