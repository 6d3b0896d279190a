package install

import (
	"testing"

	"github.com/shoenig/test/must"
)

// An edit that can be read and says something else than was meant is refused, too.
func TestCheckEdit(t *testing.T) {
	const before = "a = 1\n[b]\nc = 2\n"
	set := nest(any("x"), "b", "d")
	must.NoError(t, checkEdit("f", before, "a = 1\n[b]\nd = \"x\"\nc = 2\n", set))
	for name, after := range map[string]string{
		"nothing set":      before,
		"something lost":   "[b]\nc = 2\nd = \"x\"\n",
		"something else":   "a = 1\n[b]\nc = 3\nd = \"x\"\n",
		"in another table": "a = 1\nd = \"x\"\n[b]\nc = 2\n",
		"twice":            before + "d = \"x\"\nd = \"x\"\n",
	} {
		must.ErrorContains(t, checkEdit("f", before, after, set), "f cannot be edited", must.Sprint(name))
	}
}
