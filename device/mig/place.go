// Package mig decides where on a GPU instances of MIG go: which of them fit beside each other, and which place for the next
// one leaves the most room. It knows no driver: what profiles there are, and where each may lie, NVML says.
//
// A GPU has up to 8 memory slots. An instance takes some that follow each other, and a profile may begin at some of them
// only, so that what is free can be enough in sum and yet have no room. Nothing but overlapping slots keeps two instances
// apart, and a profile's own maximum. NVIDIA's user guide has the tables:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
package mig

import (
	"cmp"
	"slices"
	"strings"
)

// Place is where an instance lies: the memory slots from Start, Size of them.
type Place struct{ Start, Size int }

// slots is a set of memory slots, a bit for each.
type slots uint64

func (p Place) slots() slots { return (1<<p.Size - 1) << p.Start }

// Profile is a size that instances of a GPU can have.
type Profile struct {
	// Name is the driver's, such as 3g.40gb.
	Name string
	// ID is NVML's number of the profile among those that a GPU can have (nvmlGpuInstanceProfile_t).
	ID int
	// Bytes is the memory of an instance.
	Bytes uint64
	// Multiprocessors is how many of the GPU's an instance computes on.
	Multiprocessors int
	// Max is how many instances of it a GPU can have at once.
	Max int
	// Places are where it may lie on an empty GPU.
	Places []Place
}

// Instance is an instance that a GPU has, or is to have.
type Instance struct {
	// Profile is the name of its profile.
	Profile string
	Place
}

// room is what of a GPU is taken.
type room struct {
	taken slots
	count map[string]int
}

func newRoom(instances []Instance) room {
	r := room{count: make(map[string]int)}
	for _, i := range instances {
		r.taken |= i.slots()
		r.count[i.Profile]++
	}
	return r
}

func (r *room) fits(p *Profile, at Place) bool {
	return r.taken&at.slots() == 0 && r.count[p.Name] < p.Max
}

func (r *room) with(p *Profile, at Place, fn func() bool) bool {
	r.taken |= at.slots()
	r.count[p.Name]++
	done := fn()
	r.taken &^= at.slots()
	r.count[p.Name]--
	return done
}

// Pack finds a place for each of the profiles, beside the instances that there are. The places are in the order of the
// profiles. It is false if they do not fit, in whatever order they were made.
func Pack(there []Instance, wanted []Profile) ([]Place, bool) {
	order := make([]int, len(wanted))
	for i := range order {
		order[i] = i
	}
	// What takes the most room has the fewest places.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(wanted[b].size(), wanted[a].size()) })
	r := newRoom(there)
	places := make([]Place, len(wanted))
	var pack func(n int) bool
	pack = func(n int) bool {
		if n == len(order) {
			return true
		}
		p := &wanted[order[n]]
		for _, at := range p.Places {
			if r.fits(p, at) && r.with(p, at, func() bool { places[order[n]] = at; return pack(n + 1) }) {
				return true
			}
		}
		return false
	}
	return places, pack(0)
}

// size is how many slots an instance takes.
func (p *Profile) size() int {
	if len(p.Places) == 0 {
		return 0
	}
	return p.Places[0].Size
}

// Choose finds the place for one more instance that leaves the most room for others: those of the profiles given, the
// largest first. Instances that are idle can be destroyed for it, and are not counted as there; one stays if another place
// leaves as much memory for the largest instance to come. It is false if there is no place.
func Choose(there, idle []Instance, p Profile, others []Profile) (Place, bool) {
	r := newRoom(there)
	var best Place
	var most []int
	for _, at := range p.Places {
		if !r.fits(&p, at) {
			continue
		}
		var left []int
		r.with(&p, at, func() bool { left = r.worth(at, idle, others); return true })
		if most == nil || slices.Compare(left, most) > 0 {
			best, most = at, left
		}
	}
	return best, most != nil
}

// worth ranks what is left when an instance is made at a place: the most memory that one more can have, whether no idle
// instance is in the way, and how many places there are still for each profile.
func (r *room) worth(at Place, idle []Instance, profiles []Profile) []int {
	spares := 1
	if slices.ContainsFunc(idle, func(i Instance) bool { return i.Overlaps(at) }) {
		spares = 0
	}
	return append([]int{int(r.largest(profiles) >> 20), spares}, r.left(profiles)...)
}

// left counts for each profile, the largest first, how many places it still has.
func (r *room) left(profiles []Profile) []int {
	ordered := slices.Clone(profiles)
	slices.SortStableFunc(ordered, func(a, b Profile) int { return cmp.Compare(b.Bytes, a.Bytes) })
	counts := make([]int, len(ordered))
	for i := range ordered {
		for _, at := range ordered[i].Places {
			if r.fits(&ordered[i], at) {
				counts[i]++
			}
		}
	}
	return counts
}

// Smallest finds the smallest profile that has at least so much memory and a place beside the instances that there are,
// and the place to choose for it. Of two that take as many slots and have as much memory, the one that computes on less is
// the smaller, so that whoever asks for the same gets the same as long as it can be had. What is idle goes as with Choose.
func Smallest(there, idle []Instance, bytes uint64, profiles []Profile) (Profile, Place, bool) {
	ordered := slices.Clone(profiles)
	slices.SortStableFunc(ordered, func(a, b Profile) int {
		return cmp.Or(cmp.Compare(a.size(), b.size()), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Multiprocessors, b.Multiprocessors))
	})
	for _, p := range ordered {
		if p.Bytes < bytes {
			continue
		}
		if at, ok := Choose(there, idle, p, profiles); ok {
			return p, at, true
		}
	}
	return Profile{}, Place{}, false
}

// Largest is the most memory that one more instance can have; 0 if there is no room for any.
func Largest(there []Instance, profiles []Profile) uint64 {
	r := newRoom(there)
	return r.largest(profiles)
}

func (r *room) largest(profiles []Profile) uint64 {
	var most uint64
	for i := range profiles {
		if slices.ContainsFunc(profiles[i].Places, func(at Place) bool { return r.fits(&profiles[i], at) }) {
			most = max(most, profiles[i].Bytes)
		}
	}
	return most
}

// Plain leaves out the profiles that are another one with engines added or taken away, such as 1g.10gb+me: they take the
// same room, and who wants them has to name them.
func Plain(profiles []Profile) []Profile {
	return slices.DeleteFunc(slices.Clone(profiles), func(p Profile) bool { return strings.ContainsAny(p.Name, "+-") })
}

// Overlaps tells whether two places have a slot in common.
func (p Place) Overlaps(o Place) bool { return p.slots()&o.slots() != 0 }
