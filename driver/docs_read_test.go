package driver

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"
)

// What the tests of docs/driver.md and docs/driver-comparison.md read: the pages, the schemas, HCL and the names of tests.

const docFile, comparisonFile = "../docs/driver.md", "../docs/driver-comparison.md"

// readDocs returns the text of both pages.
func readDocs(t *testing.T) string {
	t.Helper()
	return readFile(t, docFile) + "\n" + readFile(t, comparisonFile)
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	must.NoError(t, err)
	return string(data)
}

// tableRows returns the rows of the tables below a heading of the pages whose first column has the title.
func tableRows(t *testing.T, section, title string) [][]string {
	t.Helper()
	var rows [][]string
	var header []string
	below := ""
	for line := range strings.Lines(readDocs(t)) {
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			below = heading
		}
		if !strings.HasPrefix(line, "|") {
			header = nil
			continue
		}
		cells := tableCells(line)
		if header == nil {
			header = cells
			continue
		}
		if below != section || header[0] != title || strings.HasPrefix(cells[0], "---") {
			continue
		}
		must.Eq(t, len(header), len(cells), must.Sprintf("cells in the row %q", line))
		rows = append(rows, cells)
	}
	must.Positive(t, len(rows), must.Sprintf("rows below the heading %q", section))
	return rows
}

func tableCells(line string) []string {
	cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|")
	for i, cell := range cells {
		cells[i] = strings.TrimSpace(cell)
	}
	return cells
}

// codeSpan is what stands between the first two backticks of a cell; empty if there are none.
func codeSpan(cell string) string {
	_, rest, _ := strings.Cut(cell, "`")
	span, _, _ := strings.Cut(rest, "`")
	return span
}

var optionName = regexp.MustCompile("(plugin )?`([a-z0-9_.]+)`")

// optionNames are the code spans of a cell that may be names of options. A plugin's follow the word plugin.
func optionNames(cell string) []string {
	var names []string
	for _, match := range optionName.FindAllStringSubmatch(cell, -1) {
		names = append(names, match[1]+match[2])
	}
	return names
}

// schemaOption is what a schema says of an option.
type schemaOption struct {
	kind   string // the type, in the words of the page
	preset string // the default as HCL without blanks; empty for none
}

// schemaOptions are the options of a schema, those in blocks as BLOCK.OPTION.
func schemaOptions(spec *hclspec.Spec) map[string]schemaOption {
	options := map[string]schemaOption{}
	addOptions(options, "", "", spec)
	return options
}

var kinds = map[string]string{"list(string)": "list of strings", "list(map(string))": "map of strings"}

func addOptions(options map[string]schemaOption, name, preset string, spec *hclspec.Spec) {
	switch block := spec.GetBlock().(type) {
	case *hclspec.Spec_Object:
		for child, childSpec := range block.Object.Attributes {
			addOptions(options, strings.TrimPrefix(name+"."+child, "."), "", childSpec)
		}
	case *hclspec.Spec_Default:
		literal := strings.ReplaceAll(block.Default.Default.GetLiteral().GetValue(), " ", "")
		addOptions(options, name, literal, block.Default.Primary)
	case *hclspec.Spec_Attr:
		kind := block.Attr.Type
		if words, ok := kinds[kind]; ok {
			kind = words
		}
		if block.Attr.Required {
			kind += ", required"
		}
		options[name] = schemaOption{kind: kind, preset: preset}
	case *hclspec.Spec_BlockValue:
		options[name] = schemaOption{kind: "block"}
		addOptions(options, name, "", block.BlockValue.Nested)
	case *hclspec.Spec_BlockList:
		options[name] = schemaOption{kind: "blocks"}
		if name != "mounts" { // The same as mount.
			addOptions(options, name, "", block.BlockList.Nested)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// hclFences are the code blocks of a page that say that they are HCL.
func hclFences(t *testing.T, file string) []string {
	t.Helper()
	var blocks []string
	for _, match := range regexp.MustCompile("(?s)\n```hcl\n(.*?)\n```").FindAllStringSubmatch(readFile(t, file), -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

func mustBeHCL(t *testing.T, text string) *hclsyntax.Body {
	t.Helper()
	file, problems := hclsyntax.ParseConfig([]byte(text), "text", hcl.InitialPos)
	must.False(t, problems.HasErrors(), must.Sprintf("%s\nin\n%s", problems, text))
	return file.Body.(*hclsyntax.Body)
}

// configBlocks returns the text of the config blocks of our plugin and of tasks for this driver.
func configBlocks(t *testing.T, text string) (plugins, tasks []string) {
	t.Helper()
	var walk func(*hclsyntax.Body)
	walk = func(body *hclsyntax.Body) {
		for _, block := range body.Blocks {
			switch {
			case block.Type == "plugin" && block.Labels[0] == "nomad-driver-tranche":
				plugins = append(plugins, configOf(block, text)...)
			case block.Type == "task" && driverOf(block) == PluginName, block.Type == "sidecar_task":
				tasks = append(tasks, configOf(block, text)...)
			default:
				walk(block.Body)
			}
		}
	}
	walk(mustBeHCL(t, text))
	return plugins, tasks
}

func configOf(block *hclsyntax.Block, text string) []string {
	var configs []string
	for _, inner := range block.Body.Blocks {
		if inner.Type == "config" {
			configs = append(configs, string(inner.Range().SliceBytes([]byte(text))))
		}
	}
	return configs
}

// driverOf is the option driver of a task.
func driverOf(task *hclsyntax.Block) string {
	attribute, ok := task.Body.Attributes["driver"]
	if !ok {
		return ""
	}
	value, _ := attribute.Expr.Value(nil)
	if value.IsNull() || !value.IsKnown() {
		return ""
	}
	return value.AsString()
}

// testNames are the tests of a folder's package, those with build tags among them.
func testNames(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	must.NoError(t, err)
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	var names []string
	for _, file := range files {
		for _, match := range declared.FindAllStringSubmatch(readFile(t, file), -1) {
			names = append(names, match[1])
		}
	}
	return names
}
