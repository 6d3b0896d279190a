package device

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl"
	"github.com/shoenig/test/must"

	"tranche.dev/tranche/device/nvml/nvmltest"
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

// docs/choosing.md has every mode, and its configuration for a fleet is one that the plugin takes.
func TestDocs_Choosing(t *testing.T) {
	content, err := os.ReadFile("../docs/choosing.md")
	must.NoError(t, err)
	page := string(content)
	for _, mode := range modes {
		must.RegexMatch(t, regexp.MustCompile("(?m)^\\| `"+string(mode)+"`"), page)
	}
	_, block, _ := strings.Cut(page, "```hcl\n")
	block, _, _ = strings.Cut(block, "```")
	var whole map[string]any
	must.NoError(t, hcl.Unmarshal([]byte(block), &whole))
	plugin := whole["plugin"].([]map[string]any)[0][PluginName].([]map[string]any)[0]["config"].([]map[string]any)[0]
	var options []any
	for _, gpu := range plugin["gpu"].([]map[string]any) {
		options = append(options, gpu)
	}
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0)), map[string]any{
		"mode": plugin["mode"], "slice_memory": plugin["slice_memory"], "gpu": options,
	})
	must.NoError(t, p.node.Load().checkGPUs())
	must.Eq(t, []string{"gpu NVIDIA H200: +"}, lines(next(t, fingerprint(t, p)).Devices))
	must.Len(t, 3, p.node.Load().sharing.blocks)
}
