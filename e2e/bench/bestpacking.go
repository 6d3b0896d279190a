package main

import "slices"

// packer looks for a way to put sizes into bins of one capacity, exactly, by filling one bin after another. The largest
// size that is left has to be in some bin, so it is the first of the next; and a bin that something would still fit into
// need not be looked at, since it might as well be there. What was found to have no way is not looked at again.
type packer struct {
	capacity int
	// counts is how often each size is left, and left how much that is.
	counts []int
	left   int
	// failed are states, by bins and counts, from which there is no way.
	failed map[string]bool
	// steps is how many more steps the search may take.
	steps int
}

// packingSteps bounds the search for one way to pack: some seconds.
const packingSteps = 5_000_000

// fits tells whether sizes fit into bins of a capacity. Where the search was given up after so many steps, known is false.
func fits(sizes []int, bins, capacity, steps int) (fit, known bool) {
	p := &packer{capacity: capacity, counts: make([]int, capacity+1), failed: map[string]bool{}, steps: steps}
	for _, size := range sizes {
		if size > capacity {
			return false, true
		}
		p.counts[size]++
		p.left += size
	}
	fit = p.fill(bins)
	return fit, fit || p.steps > 0
}

// fill tells whether what is left fits into so many empty bins.
func (p *packer) fill(bins int) bool {
	if p.left == 0 {
		return true
	}
	waste := bins*p.capacity - p.left
	if waste < 0 || p.steps <= 0 {
		return false
	}
	key := p.key(bins)
	if p.failed[key] {
		return false
	}
	largest := p.largest(p.capacity)
	p.take(largest)
	found := p.complete(bins, p.capacity-largest, largest, waste)
	p.giveBack(largest)
	if !found && p.steps > 0 {
		p.failed[key] = true
	}
	return found
}

// complete goes on with a bin that has room left, by sizes of at most limit, and then with the other bins; waste is how much
// room the bins may leave empty together.
func (p *packer) complete(bins, room, limit, waste int) bool {
	p.steps--
	if p.steps <= 0 {
		return false
	}
	for size := p.largest(min(room, limit)); size > 0; size = p.largest(size - 1) {
		p.take(size)
		found := p.complete(bins, room-size, size, waste)
		p.giveBack(size)
		if found {
			return true
		}
	}
	return room <= waste && !p.wouldFit(room) && p.fill(bins-1)
}

// largest is the largest size that is left of those of at most limit; 0 if there is none.
func (p *packer) largest(limit int) int {
	for size := limit; size > 0; size-- {
		if p.counts[size] > 0 {
			return size
		}
	}
	return 0
}

// wouldFit tells whether anything that is left would fit into a room.
func (p *packer) wouldFit(room int) bool { return p.largest(room) > 0 }

func (p *packer) take(size int)     { p.counts[size]--; p.left -= size }
func (p *packer) giveBack(size int) { p.counts[size]++; p.left += size }

func (p *packer) key(bins int) string {
	key := make([]byte, 0, len(p.counts)+1)
	for _, count := range p.counts {
		key = append(key, byte(count>>8), byte(count))
	}
	return string(append(key, byte(bins)))
}

// mostJobs is how many of the jobs, which come in this order, can have a place at the same time, if each may be moved
// whenever another comes: what no scheduler can do better. Where the search for a way to place one job more was given up,
// exact is false, and there may be no way to place the last ones.
func mostJobs(sizes []int, bins, capacity, steps int) (jobs int, exact bool) {
	for jobs = len(sizes); jobs > 0; jobs-- {
		if sum(sizes[:jobs]) > bins*capacity {
			continue
		}
		if fit, known := fits(sizes[:jobs], bins, capacity, steps); fit || !known {
			return jobs, known
		}
	}
	return 0, true
}

func sum(sizes []int) int {
	total := 0
	for _, size := range sizes {
		total += size
	}
	return total
}

// bestBins are the bins with room for a size, and of those the ones for which score is highest.
func bestBins(used []int, capacity, size int, score func(used int) int) []int {
	var best []int
	for bin, has := range used {
		if capacity-has < size {
			continue
		}
		if len(best) > 0 && score(has) < score(used[best[0]]) {
			continue
		}
		if len(best) > 0 && score(has) > score(used[best[0]]) {
			best = best[:0]
		}
		best = append(best, bin)
	}
	slices.Sort(best)
	return best
}
