package runtime

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var (
	namedTest = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)`")
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
)

// testsOf are the names of the tests and fuzzers of a package.
func testsOf(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	must.NoError(t, err)
	var names []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		must.NoError(t, err)
		for _, match := range testFunc.FindAllSubmatch(content, -1) {
			names = append(names, string(match[1]))
		}
	}
	return names
}

// Each promise in docs/security.md, and each published fault, names tests, and they exist. Each attack that is tried is
// named.
func TestDocs_Security(t *testing.T) {
	content, err := os.ReadFile("../docs/security.md")
	must.NoError(t, err)
	page := string(content)
	named, found := map[string]bool{}, map[string][]string{}
	for _, match := range namedTest.FindAllStringSubmatch(page, -1) {
		folder, name := match[1], match[2]
		if found[folder] == nil {
			found[folder] = testsOf(t, folder)
		}
		must.True(t, slices.Contains(found[folder], name), must.Sprintf("there is no %s.%s", folder, name))
		named[folder+"."+name] = true
	}
	for _, folder := range []string{"runtime", "runtime/wrapper", "runtime/edit", "runtime/nvidia", "runtime/request", "runtime/oneline", "hooks", "hooks/drivercopies", "claim", "claim/region", "internal/size"} {
		for _, name := range testsOf(t, folder) {
			if strings.HasPrefix(name, "TestHostile") || strings.HasPrefix(name, "TestBounded") || strings.HasPrefix(name, "Fuzz") {
				must.MapContainsKey(t, named, folder+"."+name, must.Sprint("the page does not name it"))
			}
		}
	}
	promises, rest, found1 := strings.Cut(page, "\n## What is not promised\n")
	_, faults, found2 := strings.Cut(rest, "\n## Published faults")
	_, promises, found3 := strings.Cut(promises, "\n## What is promised\n")
	must.True(t, found1 && found2 && found3)
	rows := 0
	for line := range strings.Lines(promises + faults) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| attack |") || strings.HasPrefix(line, "| fault |") {
			continue
		}
		rows++
		must.True(t, namedTest.MatchString(line), must.Sprintf("no test in %q", line))
	}
	must.Greater(t, 40, rows)
}
