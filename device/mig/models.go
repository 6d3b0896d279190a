package mig

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Model is what is known of a GPU's MIG without its driver, which lists profiles only while MIG is on.
type Model struct {
	// Profiles have names, places and maxima, and the most memory that an instance may have.
	Profiles []Profile
	// LargestBytes is the memory of the largest instance.
	LargestBytes uint64
}

// models are those that NVIDIA's user guide has tables for: a word of the product's name, its memory in GiB, rounded up, the
// memory of the largest instance in MiB as `nvidia-smi mig -lgip` lists it, and the number of compute slices.
var models = []struct {
	word         string
	gibibytes    int
	largestMiB   uint64
	computeSlots int
}{
	{"A30", 24, 24000, 4},
	{"A100", 40, 40192, 7}, {"A100", 80, 80384, 7}, {"A800", 40, 40192, 7}, {"A800", 80, 80384, 7},
	{"H100", 80, 81152, 7}, {"H800", 80, 81152, 7}, {"H200", 141, 143360, 7},
	{"B200", 180, 182272, 7},
}

// ModelOf returns the model of a GPU by its product name and memory; false if it is unknown.
func ModelOf(product string, memoryBytes uint64) (Model, bool) {
	gibibytes := int((memoryBytes + 1<<30 - 1) >> 30)
	words := strings.FieldsFunc(product, func(c rune) bool { return c == ' ' || c == '-' })
	for _, m := range models {
		if m.gibibytes == gibibytes && slices.Contains(words, m.word) {
			return Model{Profiles: profilesOf(m.computeSlots, gibibytes), LargestBytes: m.largestMiB << 20}, true
		}
	}
	return Model{}, false
}

// profilesOf returns the profiles of a model by its number of compute slices.
func profilesOf(computeSlots, gibibytes int) []Profile {
	if computeSlots == 4 {
		one, two, four := known(gibibytes, 1, 1, 4, 0, 1, 2, 3), known(gibibytes, 2, 2, 4, 0, 2), known(gibibytes, 4, 4, 4, 0)
		return []Profile{one, two, four, one.withMedia(), two.withMedia()}
	}
	one := known(gibibytes, 1, 1, 8, 0, 1, 2, 3, 4, 5, 6)
	return []Profile{
		one, known(gibibytes, 1, 2, 8, 0, 2, 4, 6), known(gibibytes, 2, 2, 8, 0, 2, 4), known(gibibytes, 3, 4, 8, 0, 4),
		known(gibibytes, 4, 4, 8, 0), known(gibibytes, 7, 8, 8, 0), one.withMedia(),
	}
}

// known returns a profile by its compute slices and memory slots; the GPU has `of` memory slots. A GPU can have as many
// instances of it as there are places. Its memory is that of the slots, of which the driver keeps some for itself.
func known(gibibytes, compute, size, of int, starts ...int) Profile {
	name := fmt.Sprintf("%dg.%.0fgb", compute, math.Round(float64(gibibytes*size)/float64(of)))
	p := Profile{Name: name, Bytes: uint64(gibibytes) << 30 * uint64(size) / uint64(of), Max: len(starts)}
	for _, start := range starts {
		p.Places = append(p.Places, Place{start, size})
	}
	return p
}

// media is the end of the names of profiles with the media engines.
const media = "+me"

// withMedia returns the profile with media engines, of which a GPU can have one instance.
func (p Profile) withMedia() Profile {
	p.Name, p.Max = p.Name+media, 1
	return p
}

// Named returns profiles by their names. Newer drivers have profiles with engines added or left out (1g.10gb+gfx,
// 1g.10gb-me), which have the same places as the plain one: such a name stands for that.
func (m Model) Named(names []string) ([]Profile, error) {
	counted := slices.Clone(names)
	for i, name := range names {
		if engines := strings.IndexAny(name, "+-"); engines > 0 && name[engines:] != media {
			counted[i] = name[:engines]
		}
	}
	return Named(m.Profiles, counted)
}

// Named returns profiles by their names. The error names the first that does not exist, and those that do.
func Named(profiles []Profile, names []string) ([]Profile, error) {
	var found []Profile
	for _, name := range names {
		i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
		if i < 0 {
			var there []string
			for _, p := range profiles {
				there = append(there, p.Name)
			}
			return nil, fmt.Errorf("it has no profile %q; it has %s", name, strings.Join(there, ", "))
		}
		found = append(found, profiles[i])
	}
	return found, nil
}
