package main

import (
	"math/rand/v2"
	"slices"
)

// model fills GPUs as Nomad would, by what is known of how it chooses, in more rounds than there is time for with real
// nodes. It is there to tell what is chance in the measured rounds, and stands for none of them.
func model(m mix, rounds int, seed uint64) (fills, error) {
	f := fills{}
	for round := range rounds {
		sizes := m.jobs(seed, uint64(round))
		r := chance(seed, uint64(round)+1<<32)
		f.add(noAffinity, modelRound(r, sizes, func(int) int { return 0 }))
		f.add(firstFit, modelFirstFit(sizes))
		f.add(withHint, modelRound(r, sizes, hintStep))
		if err := f.addBest(sizes); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// modelRound places jobs until one has to wait, each on one of the GPUs with room that have the best score, at random. It
// returns how many slices were given to jobs.
func modelRound(r *rand.Rand, sizes []int, score func(used int) int) int {
	used := make([]int, deviceGPUs)
	for _, size := range sizes {
		best := bestBins(used, deviceSlices, size, score)
		if len(best) == 0 {
			break
		}
		used[best[r.IntN(len(best))]] += size
	}
	return sum(used)
}

// modelFirstFit places each job on the first GPU with room for it.
func modelFirstFit(sizes []int) int {
	used := make([]int, deviceGPUs)
	for _, size := range sizes {
		gpu := slices.IndexFunc(used, func(has int) bool { return deviceSlices-has >= size })
		if gpu < 0 {
			break
		}
		used[gpu] += size
	}
	return sum(used)
}

// hintSteps is in how many steps the plugin tells Nomad how full a GPU is.
const hintSteps = 8

// hintStep is the step of a GPU of which so many slices are used; 0 is for none alone.
func hintStep(used int) int { return (used*hintSteps + deviceSlices - 1) / deviceSlices }

// hint is what the plugin says of such a GPU: its step in slices.
func hint(used int) int { return (hintStep(used)*deviceSlices + hintSteps - 1) / hintSteps }
