package device

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/slice"
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
	for name := range (&share.GPU{}).Attributes("") {
		must.StrContains(t, page, "`"+name+"`")
	}
	must.StrContains(t, page, "`"+slice.UsedAttribute+"`")
}

// docs/choosing.md has every mode, and its configuration for a fleet is one that the plugin takes.
func TestDocs_Choosing(t *testing.T) {
	content, err := os.ReadFile("../docs/choosing.md")
	must.NoError(t, err)
	page := string(content)
	for _, mode := range modes {
		must.RegexMatch(t, regexp.MustCompile("(?m)^\\| `"+string(mode)+"`"), page)
	}
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0)), documentedOptions(t, page))
	must.NoError(t, p.node.Load().check.run())
	must.Eq(t, []string{"gpu NVIDIA H200: +"}, lines(next(t, fingerprint(t, p)).Devices))
	must.Len(t, 3, p.node.Load().sharing.blocks)
}

// README's configuration has a block of each mode, and its table a row.
func TestDocs_Readme(t *testing.T) {
	content, err := os.ReadFile("../README.md")
	must.NoError(t, err)
	page := string(content)
	for _, mode := range modes {
		must.RegexMatch(t, regexp.MustCompile("(?m)^\\| `"+string(mode)+"` \\| "), page)
	}
	sharing := newPlugin(t, nvmltest.New(), documentedOptions(t, page)).node.Load().sharing
	used := []claim.Mode{sharing.others.Mode}
	for _, block := range sharing.blocks {
		used = append(used, block.Mode)
	}
	must.SliceContainsAll(t, modes, used)
}

func TestDocs_Quotas(t *testing.T) {
	content, err := os.ReadFile("../docs/quotas.md")
	must.NoError(t, err)
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0)), documentedOptions(t, string(content)))
	must.Eq(t, 16, p.node.Load().maxSlices)
	_, err = p.Reserve(sliceIDs(nvmltest.H200(0), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16))
	must.ErrorContains(t, err, "slices are more than one task may have on this node, which is 16 (max_slices")
}

// documentedOptions are those of the first configuration of the plugin on a page.
func documentedOptions(t *testing.T, page string) map[string]any {
	t.Helper()
	_, block, _ := strings.Cut(page, "```hcl\nplugin \""+PluginName+"\"")
	block, _, found := strings.Cut(block, "```")
	must.True(t, found)
	var whole map[string]any
	must.NoError(t, hcl.Unmarshal([]byte("plugin"+block), &whole))
	options := whole["plugin"].([]map[string]any)[0]["config"].([]map[string]any)[0]
	if blocks, some := options["gpu"].([]map[string]any); some {
		var all []any
		for _, gpu := range blocks {
			all = append(all, gpu)
		}
		options["gpu"] = all
	}
	return options
}
