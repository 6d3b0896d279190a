package version

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestPrint(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string
	}{
		{"x --version", "x version " + Version + "\n"},
		{"x", ""},
		{"x --version --debug", ""},
		{"x state --version", ""},
	} {
		var out strings.Builder
		must.Eq(t, tc.want != "", Print(strings.Fields(tc.args), Flag, "x", &out), must.Sprint(tc.args))
		must.Eq(t, tc.want, out.String())
	}
}
