//go:build e2e

package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const runtimesPage = "../docs/runtimes.md"

// testsOfPage are the subtests that the tables of the page name, sorted. Where the table of who asks how names no test, it
// says why there is none.
func testsOfPage(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(runtimesPage)
	must.NoError(t, err)
	var names []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| who") {
			continue
		}
		for i, text := range strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			if i > 0 {
				names = append(names, testsOfCell(t, strings.TrimSpace(text))...)
			}
		}
	}
	slices.Sort(names)
	return names
}

var (
	testName = regexp.MustCompile("`([A-Za-z0-9_]+/[A-Za-z_/]+)`")
	reason   = regexp.MustCompile(`^no: .{8,}`)
)

func testsOfCell(t *testing.T, cell string) []string {
	t.Helper()
	var names []string
	for _, match := range testName.FindAllStringSubmatch(cell, -1) {
		names = append(names, match[1])
	}
	if len(names) == 0 {
		must.RegexMatch(t, reason, cell, must.Sprint("a cell names no test and gives no reason"))
	}
	return names
}
