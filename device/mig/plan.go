package mig

import "slices"

// Present is an instance that a GPU has.
type Present struct {
	Instance
	// Used is whether somebody uses it, so that it has to stay.
	Used bool
}

// Placed is an instance to make.
type Placed struct {
	Profile Profile
	Place
}

// Change is what makes a GPU have the instances that are wanted.
type Change struct {
	// Destroy are those to take away first, by their number among the present.
	Destroy []int
	Create  []Placed
}

// Plan finds the change that makes a GPU have an instance of each profile wanted, wherever they lie. Instances that are
// used stay where they are, and count if one of their profile is wanted. Others stay if they are not in the way. It is
// false if those that are used leave no room for all: then nothing is to be changed.
func Plan(present []Present, wanted []Profile) (Change, bool) {
	if change, ok := plan(present, wanted, func(Present) bool { return true }); ok {
		return change, true
	}
	return plan(present, wanted, func(p Present) bool { return p.Used })
}

// plan is Plan if those present stay of which stays says so and that are wanted or used.
func plan(present []Present, wanted []Profile, stays func(Present) bool) (Change, bool) {
	missing := slices.Clone(wanted)
	kept := make([]bool, len(present))
	keep := func(used bool) {
		for i, p := range present {
			at := slices.IndexFunc(missing, func(w Profile) bool { return w.Name == p.Profile })
			if p.Used != used || !stays(p) || at < 0 {
				continue
			}
			missing = slices.Delete(missing, at, at+1)
			kept[i] = true
		}
	}
	keep(true)
	keep(false)
	var change Change
	var there []Instance
	for i, p := range present {
		if kept[i] || p.Used {
			there = append(there, p.Instance)
		} else {
			change.Destroy = append(change.Destroy, i)
		}
	}
	places, ok := Pack(there, missing)
	for i := range missing {
		change.Create = append(change.Create, Placed{missing[i], places[i]})
	}
	return change, ok
}
