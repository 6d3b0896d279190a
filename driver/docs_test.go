package driver

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/spec"
)

// docs/driver.md has the options of the schemas, docs/driver-comparison.md all options of the other drivers, and both name tests
// that exist.

// The headings of the pages that tests look below.
const (
	taskOptions   = "Options of a task"
	pluginOptions = "Options of the plugin"
	comparison    = "Compared with other drivers"
	renaming      = "Coming from nomad-driver-containerd"
	fromDocker    = "Coming from docker"
	fromPodman    = "Coming from podman"
)

var schemas = map[string]*hclspec.Spec{taskOptions: spec.TaskConfigSpec, pluginOptions: spec.ConfigSpec}

func TestDocs_OptionsAreThoseOfTheSchemas(t *testing.T) {
	for section, spec := range schemas {
		t.Run(section, func(t *testing.T) {
			schema, page := schemaOptions(spec), map[string]schemaOption{}
			for _, row := range tableRows(t, section, "option") {
				name := codeSpan(row[0])
				must.MapNotContainsKey(t, page, name, must.Sprintf("%s stands twice in the page", name))
				page[name] = schemaOption{kind: row[1], preset: codeSpan(row[2])}
			}
			must.Eq(t, sortedKeys(schema), sortedKeys(page))
			for name, option := range schema {
				must.Eq(t, option.kind, page[name].kind, must.Sprintf("the type of %s", name))
				if option.preset != "" {
					must.Eq(t, option.preset, strings.ReplaceAll(page[name].preset, " ", ""),
						must.Sprintf("the default of %s", name))
				}
			}
		})
	}
}

// Every option's example sets that option, can be read by Nomad, and is allowed where the operator allows everything.
func TestDocs_ExamplesOfOptions(t *testing.T) {
	for section := range schemas {
		for _, row := range tableRows(t, section, "option") {
			name, example := codeSpan(row[0]), codeSpan(row[4])
			t.Run(section+"/"+name, func(t *testing.T) {
				parts := strings.Split(name, ".")
				for _, part := range parts {
					must.StrContains(t, example, part)
				}
				if section == pluginOptions {
					decodePluginBlock(t, "config {\n"+example+"\n}")
					return
				}
				if name != "image" {
					example = "image = \"busybox:1.36\"\n" + example
				}
				c := decodeTaskBlock(t, "config {\n"+example+"\n}")
				if len(parts) == 1 && name != "devices" { // Not every machine has them.
					must.NoError(t, c.Check(generousPlugin(t)))
				}
			})
		}
	}
}

// What stands between ```hcl and ``` can be used as it is.
func TestDocs_CodeBlocks(t *testing.T) {
	blocks := hclFences(t, docFile)
	must.Positive(t, len(blocks))
	for _, text := range blocks {
		plugins, tasks := configBlocks(t, text)
		for _, plugin := range plugins {
			must.NoError(t, decodePluginBlock(t, plugin).Check())
		}
		for _, task := range tasks {
			must.NoError(t, decodeTaskBlock(t, task).Check(generousPlugin(t)))
		}
	}
}

// Every example of a task is allowed by an example of an agent, and both name no option that does not exist.
func TestExamples_Options(t *testing.T) {
	files, err := filepath.Glob("../examples/*.hcl")
	must.NoError(t, err)
	plugin, withShares := examplePlugin(t, "containerd-agent.hcl"), examplePlugin(t, "shares-agent.hcl")
	tasks := 0
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			pluginBlocks, taskBlocks := configBlocks(t, readFile(t, file))
			for _, text := range pluginBlocks {
				must.NoError(t, decodePluginBlock(t, text).Check())
			}
			for _, text := range taskBlocks {
				task, allowed := decodeTaskBlock(t, text), plugin
				if task.GPUCompute != nil {
					allowed = withShares
				}
				must.NoError(t, task.Check(allowed))
				tasks++
			}
		})
	}
	must.Positive(t, tasks)
}

// The table has every option of the other drivers and of this one, each in its driver's column, and each row says what
// shows ours, or why there is none.
func TestDocs_ComparisonIsWhole(t *testing.T) {
	ours := maps.Clone(schemaOptions(spec.TaskConfigSpec))
	for name, option := range schemaOptions(spec.ConfigSpec) {
		ours["plugin "+name] = option
	}
	// A block is named by its parts, and mounts is mount.
	maps.DeleteFunc(ours, func(_ string, option schemaOption) bool { return option.kind == "block" })
	rows := tableRows(t, comparison, "what")
	for column, options := range map[int][]string{
		1: strings.Split(dockerOptions, "\n"),
		2: strings.Split(podmanOptions, "\n"),
		3: strings.Split(abandonedOptions, "\n"),
		4: sortedKeys(ours),
	} {
		named := map[string]bool{}
		for _, row := range rows {
			for _, name := range optionNames(row[column]) {
				named[name] = true
			}
		}
		var missing []string
		for _, name := range options {
			if name = strings.TrimSpace(name); name != "" && !named[name] {
				missing = append(missing, name)
			}
		}
		must.SliceEmpty(t, missing, must.Sprintf("missing in column %d of the comparison: %q", column, missing))
	}
	for _, row := range rows {
		if strings.HasPrefix(row[0], "**") { // The title of a group.
			continue
		}
		if regexp.MustCompile(`^no\b`).MatchString(row[4]) {
			must.RegexMatch(t, regexp.MustCompile(`^no: .{12,}`), row[4], must.Sprintf("row %q needs a reason", row[0]))
			continue
		}
		must.NotEq(t, "", row[4], must.Sprintf("row %q says nothing about this driver", row[0]))
		must.StrContains(t, row[5], "Test", must.Sprintf("row %q names no test", row[0]))
	}
}

// A test that the page names is one of the package that it names.
func TestDocs_TestsExist(t *testing.T) {
	named := regexp.MustCompile("`([a-z0-9/]+)\\.(Test\\w+)`").FindAllStringSubmatch(readDocs(t), -1)
	must.Positive(t, len(named))
	found := map[string][]string{}
	var missing []string
	for _, match := range named {
		folder, name := match[1], match[2]
		if found[folder] == nil {
			found[folder] = testNames(t, filepath.Join("..", folder))
		}
		if !slices.Contains(found[folder], name) {
			missing = append(missing, folder+"."+name)
		}
	}
	must.SliceEmpty(t, missing, must.Sprintf("tests that the page names: %q", missing))
	bare := regexp.MustCompile("`Test\\w+`").FindAllString(readDocs(t), -1)
	must.SliceEmpty(t, bare, must.Sprintf("named without their package: %q", bare))
}

// The tables for those who come from another driver name options that exist here, and the one for nomad-driver-containerd
// all that it had.
func TestDocs_Renaming(t *testing.T) {
	ours := schemaOptions(spec.TaskConfigSpec)
	for name, option := range schemaOptions(spec.ConfigSpec) {
		ours["plugin "+name] = option
	}
	for _, section := range []string{renaming, fromDocker, fromPodman} {
		for _, row := range tableRows(t, section, "option") {
			must.SliceLen(t, 3, row)
			if row[1] == "–" {
				must.NotEq(t, "", row[2], must.Sprintf("%s: row %q needs a reason", section, row[0]))
				continue
			}
			names := optionNames(row[1])
			must.Positive(t, len(names), must.Sprintf("%s: row %q names no option of ours", section, row[0]))
			for _, name := range names {
				must.MapContainsKey(t, ours, name, must.Sprintf("%s: row %q", section, row[0]))
			}
		}
	}
	var listed []string
	for _, row := range tableRows(t, renaming, "option") {
		listed = append(listed, optionNames(row[0])...)
	}
	slices.Sort(listed)
	want := strings.Fields(strings.ReplaceAll(abandonedOptions, "plugin ", "plugin-"))
	for i := range want {
		want[i] = strings.Replace(want[i], "plugin-", "plugin ", 1)
	}
	slices.Sort(want)
	must.Eq(t, want, listed)
}

// examplePlugin is the plugin's configuration in an example of an agent's.
func examplePlugin(t *testing.T, file string) *spec.Config {
	t.Helper()
	plugins, _ := configBlocks(t, readFile(t, "../examples/"+file))
	must.SliceLen(t, 1, plugins)
	return decodePluginBlock(t, plugins[0])
}

// generousPlugin is that of an operator who allows everything.
func generousPlugin(t *testing.T) *spec.Config {
	t.Helper()
	c := examplePlugin(t, "containerd-agent.hcl")
	c.AllowPrivileged = true
	c.AllowCaps = []string{"all"}
	c.AllowDevices = []string{"/dev/*", "nvidia.com/gpu=*"}
	c.AllowHostNamespaces = []string{"pid", "ipc", "uts", "cgroup", "user"}
	return c
}

func decodePluginBlock(t *testing.T, text string) *spec.Config {
	t.Helper()
	var c spec.Config
	hclutils.NewConfigParser(spec.ConfigSpec).ParseHCL(t, text, &c)
	return &c
}

func decodeTaskBlock(t *testing.T, text string) *spec.TaskConfig {
	t.Helper()
	mustBeHCL(t, text)
	var c spec.TaskConfig
	hclutils.NewConfigParser(spec.TaskConfigSpec).ParseHCL(t, strings.ReplaceAll(text, "var.image", `"busybox:1.36"`), &c)
	return &c
}

// parsed reads a task's config block as Nomad does.
func parsed(t *testing.T, block string) *spec.TaskConfig {
	t.Helper()
	var got spec.TaskConfig
	hclutils.NewConfigParser(spec.TaskConfigSpec).ParseHCL(t, "config {\n image = \"busybox\"\n"+block+"\n}", &got)
	return &got
}
