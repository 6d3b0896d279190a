package shares

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

func TestWindow(t *testing.T) {
	record := func(switches, a, b, other uint64) *node.Record {
		return &node.Record{
			GPUs: []node.RecordGPU{{UUID: "GPU-0", Switches: switches}, {UUID: "GPU-1"}},
			Groups: []node.RecordGroup{
				{Group: "a", GPUUUID: "GPU-0", BusyNS: a, OverlapNS: 2 * a}, {Group: "b", GPUUUID: "GPU-0", BusyNS: b},
				{Group: "a", GPUUUID: "GPU-1", BusyNS: other},
			},
		}
	}
	start := time.Unix(1_700_000_000, 0)
	w := between(reading{start, record(10, 1e9, 2e9, 5)}, reading{start.Add(10 * time.Second), record(15, 4e9, 8e9, 7e9)})
	must.Eq(t, 10*time.Second, w.Length)
	must.Eq(t, map[string]time.Duration{"a": 3 * time.Second, "b": 6 * time.Second}, w.Busy)
	must.Eq(t, 6*time.Second, w.Overlap["a"])
	must.Eq(t, 5, w.Switches)
	must.Eq(t, 90, w.Used())
	must.InDelta(t, 100.0/3, w.Part("a"), 1e-9)
	must.InDelta(t, 0, w.Error(map[string]float64{"a": 10, "b": 20}), 1e-9)
	must.InDelta(t, 100.0/3-25, w.Error(map[string]float64{"a": 25, "b": 75}), 1e-9)
}
