package agenttest

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/net/html"
)

// CheckPage parses a page as a browser does: names of others are text in it, and add no element, attribute, line or order to a
// terminal. Its links lead to the page's own site or to Nomad's pages at https://nomad.example.com:4646.
func CheckPage(t testing.TB, body string) {
	t.Helper()
	must.StrNotContains(t, body, "\x1b")
	must.StrNotContains(t, body, "\u202e")
	root, err := html.Parse(strings.NewReader(body))
	must.NoError(t, err)
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		must.NotEq(t, "script", n.Data)
		for _, a := range n.Attr {
			must.False(t, strings.HasPrefix(a.Key, "on") || a.Key == "style", must.Sprintf("<%s %s>", n.Data, a.Key))
			if a.Key == "href" || a.Key == "src" || a.Key == "action" {
				must.True(t, strings.HasPrefix(a.Val, "/") || strings.HasPrefix(a.Val, "#") ||
					strings.HasPrefix(a.Val, "https://nomad.example.com:4646/ui/"), must.Sprint(a.Val))
			}
		}
	}
}
