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

// cellsOfPage are the tests that the table of the page names, sorted. Every other cell says why there is none.
func cellsOfPage(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(runtimesPage)
	must.NoError(t, err)
	var names []string
	inTable := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "| who starts it"):
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable && !strings.HasPrefix(line, "|---"):
			names = append(names, cellsOfRow(t, line)...)
		}
	}
	slices.Sort(names)
	return names
}

var testName = regexp.MustCompile("`([^`]+)`")

func cellsOfRow(t *testing.T, row string) []string {
	t.Helper()
	var names []string
	for i, text := range strings.Split(strings.Trim(row, "|"), "|") {
		text = strings.TrimSpace(text)
		if i == 0 {
			continue
		}
		found := testName.FindAllStringSubmatch(text, -1)
		for _, match := range found {
			names = append(names, match[1])
		}
		if len(found) == 0 {
			must.RegexMatch(t, regexp.MustCompile(`^no: .{8,}`), text, must.Sprintf("a cell of %s says nothing", row))
		}
	}
	return names
}
