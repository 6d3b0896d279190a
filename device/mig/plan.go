package mig

import "slices"

// Present is an instance that a GPU has.
type Present struct {
	Instance
	// Used is whether it is in use and has to stay.
	Used bool
}

// Placed is an instance to create.
type Placed struct {
	Profile Profile
	Place
}

// Change is a change of a GPU's instances.
type Change struct {
	// Destroy are the instances to destroy first, as indices of the present ones.
	Destroy []int
	Create  []Placed
}

// Plan returns the change after which a GPU has an instance of each wanted profile, at any place. Used instances stay, and
// count if one of their profile is wanted. Others stay if they are not in the way. It returns false, and no change is to
// be made, if the used instances leave no room for all.
func Plan(present []Present, wanted []Profile) (Change, bool) {
	if change, ok := plan(present, wanted, func(Present) bool { return true }); ok {
		return change, true
	}
	return plan(present, wanted, func(p Present) bool { return p.Used })
}

// plan is Plan, but keeps only those present instances for which stays is true and that are wanted or used.
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
