// Package mig computes where MIG instances fit on a GPU: which ones fit together, and which place for the next one leaves
// the most room. It uses no driver; the profiles and their places come from NVML or a table of models.
//
// A GPU has up to 8 memory slots. An instance takes adjacent ones, and a profile may begin at some of them only, so that
// free slots may be enough in number without room for an instance. Two instances exclude each other only if their slots
// overlap, or if their profile allows one only. NVIDIA's user guide has the tables:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
package mig

import (
	"cmp"
	"slices"
	"strings"
)

// Place is the place of an instance: Size memory slots from Start on.
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
	// Multiprocessors is the number of multiprocessors of an instance.
	Multiprocessors int
	// Max is the number of instances of it that a GPU can have at once.
	Max int
	// Places are its possible places on an empty GPU.
	Places []Place
}

// Instance is an instance that a GPU has, or is to have.
type Instance struct {
	// Profile is the name of its profile.
	Profile string
	Place
}

// room is the occupied part of a GPU.
type room struct {
	occupied slots
	count    map[string]int
}

func newRoom(instances []Instance) room {
	r := room{count: make(map[string]int)}
	for _, i := range instances {
		r.occupied |= i.slots()
		r.count[i.Profile]++
	}
	return r
}

func (r *room) fits(p *Profile, at Place) bool {
	return r.occupied&at.slots() == 0 && r.count[p.Name] < p.Max
}

func (r *room) with(p *Profile, at Place, fn func() bool) bool {
	r.occupied |= at.slots()
	r.count[p.Name]++
	done := fn()
	r.occupied &^= at.slots()
	r.count[p.Name]--
	return done
}

// Pack returns a place for an instance of each profile beside the existing instances, in the order of the profiles; false
// if they do not fit in any order.
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

// size returns the number of slots of an instance.
func (p *Profile) size() int {
	if len(p.Places) == 0 {
		return 0
	}
	return p.Places[0].Size
}

// Choose returns the place for one more instance that leaves the most room for instances of the other profiles, the largest
// first; false if there is no place. Idle instances may be destroyed for it and do not count as existing, but one stays if
// another place leaves as much memory for the largest next instance.
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

// worth ranks the room that is left when an instance is created at a place: the most memory that one more can have, whether
// no idle instance is in the way, and the number of places left for each profile.
func (r *room) worth(at Place, idle []Instance, profiles []Profile) []int {
	spares := 1
	if slices.ContainsFunc(idle, func(i Instance) bool { return i.Overlaps(at) }) {
		spares = 0
	}
	return append([]int{int(r.largest(profiles) >> 20), spares}, r.left(profiles)...)
}

// left counts the places that are left for each profile, the largest first.
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

// Smallest returns the smallest profile with at least so much memory that has a place beside the existing instances, and
// the place to choose for it. Of two with as many slots and as much memory, the one with fewer multiprocessors is the
// smaller, so that equal requests get equal instances as long as there are any. Idle instances count as in Choose.
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

// Largest returns the most memory that one more instance can have; 0 if there is no room for any.
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

// Plain returns the profiles without those that are another one with engines added or left out, such as 1g.10gb+me. They
// take the same room, and are used only if they are named.
func Plain(profiles []Profile) []Profile {
	return slices.DeleteFunc(slices.Clone(profiles), func(p Profile) bool { return strings.ContainsAny(p.Name, "+-") })
}

// Overlaps reports whether two places have a slot in common.
func (p Place) Overlaps(o Place) bool { return p.slots()&o.slots() != 0 }
