package main

import (
	"math/rand/v2"
	"testing"

	"github.com/shoenig/test/must"
)

// bruteFits tries every bin for every size.
func bruteFits(sizes, room []int) bool {
	if len(sizes) == 0 {
		return true
	}
	for bin := range room {
		if room[bin] < sizes[0] {
			continue
		}
		room[bin] -= sizes[0]
		fit := bruteFits(sizes[1:], room)
		room[bin] += sizes[0]
		if fit {
			return true
		}
	}
	return false
}

func TestFits(t *testing.T) {
	cases := []struct {
		name           string
		sizes          []int
		bins, capacity int
		want           bool
	}{
		{"nothing", nil, 1, 10, true},
		{"exactly", []int{10, 10}, 2, 10, true},
		{"one too large", []int{11}, 2, 10, false},
		{"more than there is", []int{7, 7, 7}, 2, 10, false},
		{"enough in all, no room in one", []int{6, 6, 6}, 2, 10, false},
		{"largest first would fail", []int{5, 4, 4, 3, 3, 3}, 2, 11, true},
		{"all rooms used up, in one way", []int{9, 8, 7, 6, 5, 4, 3, 2, 1}, 3, 15, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fit, known := fits(c.sizes, c.bins, c.capacity, packingSteps)
			must.True(t, known)
			must.Eq(t, c.want, fit)
		})
	}
}

// Some thousand small cases, as many of them with a way as without one.
func TestFits_asBruteForceDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 28))
	fitting := 0
	const cases = 4000
	for range cases {
		bins, capacity := 2+r.IntN(3), 8+r.IntN(8)
		var sizes []int
		for sum(sizes) < bins*capacity-r.IntN(4) && len(sizes) < 11 {
			sizes = append(sizes, 1+r.IntN(capacity*3/4))
		}
		room := make([]int, bins)
		for bin := range room {
			room[bin] = capacity
		}
		fit, known := fits(sizes, bins, capacity, packingSteps)
		must.True(t, known)
		must.Eq(t, bruteFits(sizes, room), fit, must.Sprintf("%v into %d of %d", sizes, bins, capacity))
		if fit {
			fitting++
		}
	}
	must.Between(t, cases/10, fitting, cases*9/10)
}

func TestMostJobs(t *testing.T) {
	cases := []struct {
		name  string
		sizes []int
		want  int
	}{
		{"all", []int{6, 6}, 2},
		{"the first is too large", []int{11, 1}, 0},
		{"as much as there is", []int{5, 6, 4, 5, 1}, 4},
		{"no more by moving", []int{6, 6, 6, 1}, 2},
		{"by moving what was there first", []int{3, 3, 4, 5, 5, 1}, 5},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			jobs, exact := mostJobs(c.sizes, 2, 10, packingSteps)
			must.True(t, exact)
			must.Eq(t, c.want, jobs)
		})
	}
}

// A search that was given up says that it does not know, and what is reported then is what it did not rule out.
func TestFits_givenUp(t *testing.T) {
	sizes := []int{5, 4, 4, 4, 3}
	fit, known := fits(sizes, 2, 10, packingSteps)
	must.True(t, known)
	must.False(t, fit)
	fit, known = fits(sizes, 2, 10, 3)
	must.False(t, known)
	must.False(t, fit)

	jobs, exact := mostJobs(sizes, 2, 10, packingSteps)
	must.Eq(t, 4, jobs)
	must.True(t, exact)
	jobs, exact = mostJobs(sizes, 2, 10, 3)
	must.Eq(t, 5, jobs)
	must.False(t, exact)
}

// What the search did not come to look at counts for nothing later.
func TestPacker_forgetsWhatItGaveUp(t *testing.T) {
	p := &packer{capacity: 10, counts: make([]int, 11), failed: map[string]bool{}, steps: 2}
	for _, size := range []int{5, 4, 4, 3, 3} {
		p.giveBack(size)
	}
	must.False(t, p.fill(2))
	must.MapLen(t, 0, p.failed)
	p.steps = packingSteps
	must.True(t, p.fill(2))
}

func TestBestBins(t *testing.T) {
	used := []int{0, 5, 5, 9}
	same := func(int) int { return 0 }
	fullest := func(used int) int { return used }
	must.Eq(t, []int{0, 1, 2, 3}, bestBins(used, 10, 1, same))
	must.Eq(t, []int{0, 1, 2}, bestBins(used, 10, 2, same))
	must.Eq(t, []int{3}, bestBins(used, 10, 1, fullest))
	must.Eq(t, []int{1, 2}, bestBins(used, 10, 5, fullest))
	must.SliceEmpty(t, bestBins(used, 10, 11, fullest))
}
