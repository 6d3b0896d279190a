package mig

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
)

func profile(name string, gib uint64, most, size int, starts ...int) Profile {
	p := Profile{Name: name, Bytes: gib << 30, Max: most}
	for _, start := range starts {
		p.Places = append(p.Places, Place{start, size})
	}
	return p
}

// a100 are the profiles of an A100 with 80 GB, from NVIDIA's user guide.
var a100 = []Profile{
	profile("1g.10gb", 10, 7, 1, 0, 1, 2, 3, 4, 5, 6),
	profile("1g.10gb+me", 10, 1, 1, 0, 1, 2, 3, 4, 5, 6),
	profile("1g.20gb", 20, 4, 2, 0, 2, 4, 6),
	profile("2g.20gb", 20, 3, 2, 0, 2, 4),
	profile("3g.40gb", 40, 2, 4, 0, 4),
	profile("4g.40gb", 40, 1, 4, 0),
	profile("7g.80gb", 80, 1, 8, 0),
}

func named(t *testing.T, names ...string) []Profile {
	t.Helper()
	var found []Profile
	for _, name := range names {
		i := slices.IndexFunc(a100, func(p Profile) bool { return p.Name == name })
		must.NonNegative(t, i, must.Sprint(name))
		found = append(found, a100[i])
	}
	return found
}

func TestPack(t *testing.T) {
	for _, tc := range []struct {
		there  []Instance
		wanted []string
		want   []Place
	}{
		{nil, nil, []Place{}},
		{nil, []string{"7g.80gb"}, []Place{{0, 8}}},
		// In the order in which they stand, the 3g would be put where a 2g has to be.
		{nil, []string{"3g.40gb", "2g.20gb", "2g.20gb"}, []Place{{4, 4}, {0, 2}, {2, 2}}},
		{nil, []string{"2g.20gb", "1g.10gb", "4g.40gb", "1g.10gb"}, []Place{{4, 2}, {6, 1}, {0, 4}, nowhere}},
		{nil, []string{"1g.10gb", "2g.20gb", "4g.40gb"}, []Place{{6, 1}, {4, 2}, {0, 4}}},
		{[]Instance{{"3g.40gb", Place{0, 4}}}, []string{"2g.20gb"}, []Place{{4, 2}}},
		{[]Instance{{"3g.40gb", Place{0, 4}}}, []string{"2g.20gb", "2g.20gb"}, nil},
		{[]Instance{{"1g.10gb+me", Place{0, 1}}}, []string{"1g.10gb+me"}, nil},
		{nil, []string{"1g.20gb", "1g.20gb", "1g.20gb", "1g.20gb"}, []Place{{0, 2}, {2, 2}, {4, 2}, {6, 2}}},
		{nil, []string{"7g.80gb", "1g.10gb"}, nil},
		{nil, []string{"4g.40gb", "4g.40gb"}, nil},
	} {
		places, ok := Pack(tc.there, named(t, tc.wanted...))
		fits := tc.want != nil && !slices.Contains(tc.want, nowhere)
		must.Eq(t, fits, ok, must.Sprint(tc.wanted))
		if fits {
			must.Eq(t, tc.want, places, must.Sprint(tc.wanted))
		}
	}
}

// nowhere marks a row of TestPack whose profiles don't fit.
var nowhere = Place{-1, -1}

// Any multiset of profiles that can be made one after the other, in some order and at some places, is packed; and no
// other.
func TestPack_All(t *testing.T) {
	reachable := map[string]bool{}
	var make func(there []Instance, names []string)
	make = func(there []Instance, names []string) {
		key := fmt.Sprint(names)
		r := newRoom(there)
		reachable[key] = true
		for i := range a100 {
			if len(names) > 0 && a100[i].Name < names[len(names)-1] {
				continue // in the order of names, so that each multiset is met once for each way to lie
			}
			for _, at := range a100[i].Places {
				if r.fits(&a100[i], at) {
					make(append(slices.Clone(there), Instance{a100[i].Name, at}), append(slices.Clone(names), a100[i].Name))
				}
			}
		}
	}
	make(nil, nil)
	tried := 0
	var try func(names []string)
	try = func(names []string) {
		tried++
		places, ok := Pack(nil, named(t, names...))
		must.Eq(t, reachable[fmt.Sprint(names)], ok, must.Sprint(names))
		if ok {
			var taken slots
			for _, at := range places {
				must.Zero(t, taken&at.slots(), must.Sprint(names))
				taken |= at.slots()
			}
		}
		if len(names) == 5 {
			return
		}
		for i := range a100 {
			if len(names) == 0 || a100[i].Name >= names[len(names)-1] {
				try(append(slices.Clone(names), a100[i].Name))
			}
		}
	}
	try(nil)
	must.Greater(t, 700, tried)
}

func TestChoose(t *testing.T) {
	one, three := named(t, "1g.10gb")[0], named(t, "3g.40gb")[0]
	at, ok := Choose(nil, nil, one, a100)
	must.True(t, ok)
	must.Eq(t, Place{6, 1}, at, must.Sprint("slot 6 is in the way of the least: a 3g at 0, a 4g and all 2g still fit"))
	at, ok = Choose([]Instance{{"1g.10gb", Place{6, 1}}}, nil, one, a100)
	must.True(t, ok)
	must.Between(t, 4, at.Start, 5)
	at, ok = Choose(nil, nil, three, a100)
	must.True(t, ok)
	must.Eq(t, Place{4, 4}, at, must.Sprint("a 4g still fits"))
	_, ok = Choose([]Instance{{"7g.80gb", Place{0, 8}}}, nil, one, a100)
	must.False(t, ok)
}

func TestSmallest(t *testing.T) {
	for gib, want := range map[uint64]string{1: "1g.10gb", 10: "1g.10gb", 11: "2g.20gb", 20: "2g.20gb", 21: "3g.40gb", 41: "7g.80gb", 80: "7g.80gb"} {
		p, _, ok := Smallest(nil, nil, gib<<30, named(t, "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"))
		must.True(t, ok, must.Sprint(gib))
		must.Eq(t, want, p.Name, must.Sprint(gib))
	}
	_, _, ok := Smallest(nil, nil, 81<<30, a100)
	must.False(t, ok)
	_, _, ok = Smallest([]Instance{{"1g.10gb", Place{0, 1}}, {"1g.10gb", Place{4, 1}}}, nil, 40<<30, a100)
	must.False(t, ok, must.Sprint("there is room for 60 GiB, but nowhere for 40"))
}

func TestLargest(t *testing.T) {
	must.Eq(t, 80<<30, Largest(nil, a100))
	must.Eq(t, 40<<30, Largest([]Instance{{"1g.10gb", Place{6, 1}}}, a100))
	must.Eq(t, 20<<30, Largest([]Instance{{"1g.10gb", Place{0, 1}}, {"1g.10gb", Place{4, 1}}}, a100))
	must.Eq(t, 0, Largest([]Instance{{"7g.80gb", Place{0, 8}}}, a100))
}

// What Largest promises, Smallest finds.
func TestLargest_IsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var there []Instance
		for {
			p, at, ok := Smallest(there, nil, uint64(1+random.IntN(45))<<30, a100)
			if !ok {
				break
			}
			there = append(there, Instance{p.Name, at})
			for range random.IntN(2) {
				there = slices.Delete(there, 0, min(1, len(there)))
			}
			if largest := Largest(there, a100); largest > 0 {
				_, _, ok := Smallest(there, nil, largest, a100)
				must.True(t, ok, must.Sprint(there))
			}
		}
	}
}

// An idle instance goes only where its room is wanted.
func TestChoose_Idle(t *testing.T) {
	one, three, seven := named(t, "1g.10gb")[0], named(t, "3g.40gb")[0], named(t, "7g.80gb")[0]
	idle := []Instance{{"1g.10gb", Place{6, 1}}}
	at, ok := Choose(nil, idle, one, a100)
	must.True(t, ok)
	must.Between(t, 4, at.Start, 5, must.Sprint("40 GiB can still be had beside both"))
	at, ok = Choose(nil, idle, three, a100)
	must.True(t, ok)
	must.Eq(t, 0, at.Start, must.Sprint("the other half has as much room"))
	at, ok = Choose(nil, idle, seven, a100)
	must.True(t, ok)
	must.Eq(t, Place{0, 8}, at)
	at, ok = Choose([]Instance{{"1g.10gb", Place{4, 1}}}, []Instance{{"1g.10gb", Place{6, 1}}, {"1g.10gb", Place{5, 1}}}, one, a100)
	must.True(t, ok)
	must.Between(t, 5, at.Start, 6, must.Sprint("anywhere else the last 40 GiB in one piece would go"))
}

// Profiles with other engines are not for who asks for memory.
func TestPlain(t *testing.T) {
	all := append(slices.Clone(a100), profile("1g.10gb+gfx", 10, 1, 1, 0), profile("1g.10gb-me", 10, 7, 1, 0))
	var names []string
	for _, p := range Plain(all) {
		names = append(names, p.Name)
	}
	must.Eq(t, []string{"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}, names)
	must.Len(t, len(a100)+2, all, must.Sprint("what was given stays"))
}
