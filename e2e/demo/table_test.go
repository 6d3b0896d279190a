package main

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// TestTable checks that one promise that did not hold is enough, and that nothing shown is not "everything held".
func TestTable(t *testing.T) {
	var shown table
	must.False(t, shown.held())
	shown.add(true, "the sky is blue", "%d nm", 475)
	must.True(t, shown.held())
	shown.add(false, "pigs fly", "%d pigs\non the ground", 3)
	shown.add(true, "water is wet", "yes")
	must.False(t, shown.held())

	var out strings.Builder
	shown.print(&out)
	must.StrContains(t, out.String(), "475 nm")
	must.StrContains(t, out.String(), "3 pigs on the ground")
	must.Eq(t, 1, strings.Count(out.String(), "FAILED"))
	must.Eq(t, 2, strings.Count(out.String(), " ok\n"))
}
