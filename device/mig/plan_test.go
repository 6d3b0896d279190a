package mig

import (
	"testing"

	"github.com/shoenig/test/must"
)

func present(used bool, name string, start, size int) Present {
	return Present{Instance{name, Place{start, size}}, used}
}

func TestPlan(t *testing.T) {
	const idle, used = false, true
	type placed struct {
		name  string
		start int
	}
	for name, tc := range map[string]struct {
		present []Present
		wanted  []string
		destroy []int
		create  []placed
		ok      bool
	}{
		"an empty GPU": {
			wanted: []string{"3g.40gb", "2g.20gb", "2g.20gb"}, create: []placed{{"3g.40gb", 4}, {"2g.20gb", 0}, {"2g.20gb", 2}}, ok: true,
		},
		"as it should be": {
			present: []Present{present(idle, "2g.20gb", 2, 2), present(used, "3g.40gb", 4, 4)}, wanted: []string{"3g.40gb", "2g.20gb"}, ok: true,
		},
		"one is missing": {
			present: []Present{present(idle, "3g.40gb", 4, 4)}, wanted: []string{"3g.40gb", "2g.20gb"},
			create: []placed{{"2g.20gb", 0}}, ok: true,
		},
		"one too many": {
			present: []Present{present(idle, "2g.20gb", 0, 2), present(idle, "2g.20gb", 2, 2)}, wanted: []string{"2g.20gb"},
			destroy: []int{1}, ok: true,
		},
		"one too many, and the first is used": {
			present: []Present{present(idle, "2g.20gb", 0, 2), present(used, "2g.20gb", 2, 2)}, wanted: []string{"2g.20gb"},
			destroy: []int{0}, ok: true,
		},
		"another one, used, stays": {
			present: []Present{present(used, "1g.10gb", 0, 1)}, wanted: []string{"3g.40gb"}, create: []placed{{"3g.40gb", 4}}, ok: true,
		},
		"another one, used, is in the way": {
			present: []Present{present(used, "1g.10gb", 0, 1), present(idle, "2g.20gb", 4, 2)}, wanted: []string{"4g.40gb"},
		},
		"one that is wanted lies badly": {
			present: []Present{present(idle, "3g.40gb", 0, 4)}, wanted: []string{"3g.40gb", "2g.20gb", "2g.20gb"},
			destroy: []int{0}, create: []placed{{"3g.40gb", 4}, {"2g.20gb", 0}, {"2g.20gb", 2}}, ok: true,
		},
		"one that is wanted lies badly and is used": {
			present: []Present{present(used, "3g.40gb", 0, 4)}, wanted: []string{"3g.40gb", "2g.20gb", "2g.20gb"},
		},
		"nothing is wanted": {present: []Present{present(idle, "7g.80gb", 0, 8)}, destroy: []int{0}, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			change, ok := Plan(tc.present, named(t, tc.wanted...))
			must.Eq(t, tc.ok, ok)
			if !ok {
				return
			}
			must.Eq(t, tc.destroy, change.Destroy)
			var create []placed
			for _, p := range change.Create {
				create = append(create, placed{p.Profile.Name, p.Start})
			}
			must.Eq(t, tc.create, create)
		})
	}
}
