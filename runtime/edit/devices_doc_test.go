package edit

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var (
	backticks = regexp.MustCompile("`([^`]+)`")
	oneWord   = regexp.MustCompile("^ `[a-z0-9]+` $") // a capability
)

// What docs/devices.md says of capabilities is what the tables have, and the tests that it names are there.
func TestDevicesDoc(t *testing.T) {
	doc, err := os.ReadFile("../../docs/devices.md")
	must.NoError(t, err)
	documented := capabilities(0)
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !oneWord.MatchString(cells[1]) {
			continue
		}
		set := capabilityCalled(strings.Trim(cells[1], " `"))
		must.NotEq(t, 0, set, must.Sprint(line))
		documented |= set
		for _, file := range backticks.FindAllStringSubmatch(cells[3], -1) {
			checkDocumented(t, file[1], set)
		}
	}
	must.Eq(t, everyCapability, documented)

	tests := ""
	for _, file := range testFiles(t, ".", "../nvidia", "../wrapper") {
		content, err := os.ReadFile(file)
		must.NoError(t, err)
		tests += string(content)
	}
	named := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(doc), -1)
	must.Greater(t, 4, len(named))
	for _, name := range named {
		must.StrContains(t, tests, "func "+name[1]+"(t *testing.T)")
	}
}

func testFiles(t *testing.T, dirs ...string) (all []string) {
	t.Helper()
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		must.NoError(t, err)
		all = append(all, files...)
	}
	return all
}

// checkDocumented checks a file that a row names; a library stands there without its ".so".
func checkDocumented(t *testing.T, file string, set capabilities) {
	t.Helper()
	of := capabilitiesOf("/x/" + file)
	if of == everyCapability {
		of = capabilitiesOf("/x/" + file + ".so.1")
	}
	if of == everyCapability {
		of = capabilitiesOf("/run/" + file + "/socket")
	}
	must.True(t, of != everyCapability && of&set != 0, must.Sprintf("%s is for %s, not %s", file, of, set))
}
