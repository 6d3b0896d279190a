package device

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// choice is one of some values at one of some places.
type choice struct{ place, value int }

// pairwise are rows that choose a value for each place, so that every two choices of two places are together in one of
// them. They are the same ones each time.
func pairwise(places, values int) (rows [][]int) {
	met := map[[2]choice]bool{}
	for {
		seed, left := firstApart(places, values, met)
		if !left {
			return rows
		}
		row := slices.Repeat([]int{-1}, places)
		row[seed[0].place], row[seed[1].place] = seed[0].value, seed[1].value
		for place := range row {
			if row[place] < 0 {
				row[place] = bestValue(row, place, values, len(rows), met)
			}
		}
		for _, pair := range pairsOf(row) {
			met[pair] = true
		}
		rows = append(rows, row)
	}
}

// firstApart finds two choices that have not met.
func firstApart(places, values int, met map[[2]choice]bool) (pair [2]choice, left bool) {
	for later := range places {
		for earlier := range later {
			for value := range values * values {
				pair = [2]choice{{earlier, value / values}, {later, value % values}}
				if !met[pair] {
					return pair, true
				}
			}
		}
	}
	return pair, false
}

// bestValue is the value for a place that brings most choices together that have not met, and the next in turn of those
// that are equally good.
func bestValue(row []int, place, values, turn int, met map[[2]choice]bool) (best int) {
	most := -1
	for offset := range values {
		value := (turn + place + offset) % values
		tried, gain := slices.Clone(row), 0
		tried[place] = value
		for _, pair := range pairsOf(tried) {
			if !met[pair] {
				gain++
			}
		}
		if gain > most {
			best, most = value, gain
		}
	}
	return best
}

// pairsOf are any two choices of a row; places below 0 are open.
func pairsOf(row []int) (pairs [][2]choice) {
	for later, value := range row {
		for earlier, other := range row[:later] {
			if value >= 0 && other >= 0 {
				pairs = append(pairs, [2]choice{{earlier, other}, {later, value}})
			}
		}
	}
	return pairs
}

// Every two ways to share meet on every two of eight GPUs. Each GPU is offered as its block says and taken alone.
func TestMixture(t *testing.T) {
	const gpus = 8
	for _, row := range pairwise(gpus, len(allModes)) {
		t.Run(fmt.Sprint(row), func(t *testing.T) {
			t.Parallel()
			n := newSharedNode(t)
			must.Len(t, gpus, n.gpus)
			var blocks []map[string]any
			for index, number := range row {
				blocks = append(blocks, allModes[number].block(fmt.Sprintf("index:%d", index)))
			}
			n.restart(t, blocks...)
			groups := next(t, fingerprint(t, n.plugin)).Devices
			for _, group := range groups {
				must.NoError(t, group.Validate())
			}
			var before []*claim.Claim
			for index, number := range row {
				w := &allModes[number]
				seen := offeredOf(groups, n.gpus[index])
				w.mustOffer(t, seen)
				made, _ := n.reserve(t, w, n.gpus[index], seen)
				before = append(before, made)
				must.SliceContainsAll(t, claimsOf(t, n.plugin), before, must.Sprint("a claim on another GPU was touched"))
				must.Len(t, len(before), claimsOf(t, n.plugin))
			}
		})
	}
}
