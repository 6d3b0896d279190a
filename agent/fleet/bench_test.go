package fleet

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// largeFleet has 200 nodes with 8 GPUs of 80 slices, and on each GPU 4 allocations of 16.
func largeFleet() *nomad {
	n := &nomad{statistics: map[string]any{}}
	for i := range 200 {
		g := gpuNode(fmt.Sprintf("gpu-%03d", i), 8, 80)
		var claims [][]string
		for gpu := range 8 {
			for k := range 4 {
				ids := slicesOf(gpu, 16*k, 16*k+16)
				job := fmt.Sprintf("job-%d", len(n.allocs)/3)
				n.allocs = append(n.allocs, allocation(fmt.Sprintf("%08d-alloc", len(n.allocs)), "research", job, g.ID, "running", ids))
				claims = append(claims, ids)
			}
		}
		n.nodes, n.statistics[g.ID] = append(n.nodes, g), stats(claims...)
	}
	return n
}

// BenchmarkMap makes the map of a large fleet: from lists that are fresh, after the lists, and after all statistics too were queried
// again. Nomad's part is in the last two.
func BenchmarkMap(b *testing.B) {
	n := newNomad(b, largeFleet())
	f := start(b, n)
	f.cluster.times.patience = usualTimes.patience
	viewer := signedIn(b, f, tokenOfAll)
	size := 0
	look := func() {
		status, body := viewer.get("/")
		must.Eq(b, http.StatusOK, status)
		size = len(body)
	}
	look()
	f.Close()
	b.Run("fresh", func(b *testing.B) {
		for b.Loop() {
			look()
		}
		b.ReportMetric(float64(size), "bytes/page")
	})
	lists := func() {
		f.cluster.list.Drop()
		for _, v := range f.sessions.all {
			v.seen.Drop()
		}
	}
	b.Run("lists", func(b *testing.B) {
		for b.Loop() {
			lists()
			look()
		}
	})
	b.Run("statistics", func(b *testing.B) {
		for b.Loop() {
			lists()
			f.cluster.began = time.Time{}
			look()
			f.Close()
		}
	})
}
