package main

import (
	"context"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

func TestMix_jobs(t *testing.T) {
	for _, m := range mixes {
		sizes := m.jobs(1, 2)
		must.Eq(t, sizes, m.jobs(1, 2), must.Sprint("the same round has other jobs"))
		must.NotEq(t, sizes, m.jobs(1, 3))
		must.NotEq(t, sizes, m.jobs(2, 2))
		must.Greater(t, deviceGPUs*deviceSlices, sum(sizes))
		must.LessEq(t, deviceGPUs*deviceSlices, sum(sizes[:len(sizes)-1]))
		for _, size := range sizes {
			must.Between(t, 1, size, deviceSlices)
		}
	}
	must.SliceContains(t, mixes[1].jobs(1, 0), deviceSlices)
}

func TestFills(t *testing.T) {
	f := fills{}
	for _, slices := range []int{564, 1128, 846} {
		f.add(withHint, slices)
	}
	must.NoError(t, f.addBest([]int{141, 141, 141, 141, 71, 71, 71, 71, 71, 1}))
	must.Eq(t, []result{
		{"packing", withHint, 1, 75, 100, "%"},
		{"packing", bestPossible, 1, 100 * (4*141 + 4*71) / 1128., 100 * (4*141 + 4*71) / 1128., "%"},
	}, f.results("packing"))
}

// The plugin rounds up to eighths; what it says of 141 slices is in its own tests for other numbers.
func TestHint(t *testing.T) {
	for used, want := range map[int]int{0: 0, 1: 18, 17: 18, 18: 36, 70: 71, 71: 89, 123: 124, 124: 141, 141: 141} {
		must.Eq(t, want, hint(used), must.Sprint(used))
	}
}

func TestModel(t *testing.T) {
	for _, m := range mixes {
		f, err := model(m, 200, 1)
		must.NoError(t, err)
		again, err := model(m, 200, 1)
		must.NoError(t, err)
		must.Eq(t, f, again)
		mean := map[string]float64{}
		for _, way := range []string{noAffinity, firstFit, withHint, bestPossible} {
			must.Len(t, 200, f[way])
			for i, fill := range f[way] {
				must.LessEq(t, f[bestPossible][i], fill, must.Sprintf("%s in round %d", way, i))
				mean[way] += fill / 200
			}
		}
		must.Greater(t, mean[noAffinity], mean[firstFit])
		must.Greater(t, mean[noAffinity], mean[withHint])
		must.Greater(t, mean[withHint], mean[bestPossible])
	}
}

func TestWaitsForDevices(t *testing.T) {
	eval := func(dimension string) *api.Evaluation {
		return &api.Evaluation{FailedTGAllocs: map[string]*api.AllocationMetric{
			"probe": {DimensionExhausted: map[string]int{dimension: 1}},
		}}
	}
	must.NoError(t, waitsForDevices(eval("devices: no devices match request")))
	must.ErrorContains(t, waitsForDevices(eval("memory")), `waits for "memory"`)
	must.ErrorContains(t, waitsForDevices(&api.Evaluation{
		FailedTGAllocs: map[string]*api.AllocationMetric{"probe": {}},
	}), "something else than devices")
}

func TestPackingCounts(t *testing.T) {
	for _, c := range []packingCounts{{rounds: 0, modelled: 1}, {rounds: 1, modelled: 0}} {
		_, err := (&bench{}).packing(context.Background(), c)
		must.ErrorContains(t, err, "1 or more")
	}
}
