package device

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
)

// docs/device.md has every option of the plugin, every mode and every attribute of the groups, and no option that is none.
func TestDocs(t *testing.T) {
	content, err := os.ReadFile("../docs/device.md")
	must.NoError(t, err)
	page := string(content)
	for option := range configSpec.GetObject().Attributes {
		must.RegexMatch(t, regexp.MustCompile("(?m)^\\| (`[a-z_]+`, )?`"+option+"`(, `[a-z_]+`)? \\| "), page, must.Sprint(option))
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| [^|]* \\| [^|]* \\|$").FindAllStringSubmatch(page, -1) {
		must.MapContainsKey(t, configSpec.GetObject().Attributes, row[1])
	}
	rows := regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| `device ").FindAllStringSubmatch(page, -1)
	var documented []string
	for _, row := range rows {
		documented = append(documented, row[1])
	}
	var chosen []string
	for _, mode := range modes {
		chosen = append(chosen, string(mode))
	}
	slices.Sort(documented)
	slices.Sort(chosen)
	must.Eq(t, chosen, documented)
	for name := range (&gpu{}).attributes("") {
		must.StrContains(t, page, "`"+name+"`")
	}
	must.StrContains(t, page, "`"+hintAttribute+"`")
}
