package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl"
)

// nomadConfigDir is what Nomad's packages have the agent read: all files in it, merged.
const nomadConfigDir = "/etc/nomad.d"

const nomadFile = "tranche.hcl"

// nomadPlugins are the plugins' binaries, by which their blocks go.
var nomadPlugins = []string{"nomad-device-tranche", "nomad-driver-tranche"}

// Nomad is a Nomad client's agent. It starts whatever lies in its plugin directory, and takes the plugins' options from
// blocks in its configuration.
type Nomad struct{}

// Install plans the plugins' blocks as a file of our own.
func (Nomad) Install(_ context.Context, o Options, was Entry) (*Plan, error) {
	if o.SetDefault {
		return nil, errors.New("--set-default is for container engines: a job of Nomad names its driver itself")
	}
	config, err := ReadNomad(orDefault(o.ConfigFile, nomadConfigDir))
	if err != nil {
		return nil, err
	}
	f, err := readFile(filepath.Join(config.Dir, nomadFile))
	if err != nil {
		return nil, err
	}
	plan := &Plan{
		Entry:  Entry{File: f.path, Runtime: o.RuntimePath, Created: was.Created || !f.exists},
		Reload: []string{"systemctl", "restart", "nomad"}, ReloadNote: "tasks go on running",
	}
	dir := orDefault(o.PluginDir, config.PluginDir)
	if dir == "" {
		return nil, fmt.Errorf("no file in %s sets plugin_dir or data_dir, so the agent's plugin directory is unknown; "+
			"set --plugin-dir; nothing was changed", config.Dir)
	}
	plan.Entry.PluginDir = dir
	if err := plan.providePlugins(o, dir); err != nil {
		return nil, err
	}
	plan.note("Nomad's docker driver takes this runtime only where its plugin block allows it: "+
		"plugin \"docker\" { config { allow_runtimes = [\"runc\", %q] } }", RuntimeName)
	if err := config.checkNvidia(plan); err != nil {
		return nil, err
	}
	if config.metricsFile != "" && !config.AllocationMetrics {
		plan.note("%s has publish_allocation_metrics = false, so Nomad publishes no statistics of tasks", config.metricsFile)
	}
	lines := config.missingBlocks(o, string(f.text))
	if len(lines) == 0 {
		plan.Entry = Entry{File: was.File, Runtime: was.Runtime, Created: was.Created, PluginDir: dir}
		return plan, nil
	}
	plan.change(f, []byte(appendMarked(withoutMarked(string(f.text), ""), lines)))
	return plan, nil
}

// providePlugins plans links to a package's plugins, or says which plugins are missing.
func (p *Plan) providePlugins(o Options, dir string) error {
	if o.CopiesPlugins {
		return nil
	}
	if prefix := prefixOf(o.RuntimePath); Packaged(prefix) {
		return p.linkPlugins(prefix, dir)
	}
	for _, name := range nomadPlugins {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			p.note("%s is not in the agent's plugin directory %s yet: use --from, or copy it there", name, dir)
		}
	}
	return nil
}

// Uninstall plans to take the blocks out, and links to a package's plugins. Plugins that were copied go with the other files.
func (Nomad) Uninstall(_ context.Context, o Options, was Entry) (*Plan, error) {
	plan := &Plan{
		Reload: []string{"systemctl", "restart", "nomad"}, ReloadNote: "tasks go on running",
	}
	plan.unlinkPlugins(orDefault(o.PluginDir, was.PluginDir))
	dir := nomadConfigDir
	if was.File != "" {
		dir = filepath.Dir(was.File)
	}
	config, err := ReadNomad(orDefault(o.ConfigFile, dir))
	if errors.Is(err, fs.ErrNotExist) && was != (Entry{}) {
		return plan, nil // Nomad was removed, with its configuration
	}
	if err != nil {
		return nil, err
	}
	f, err := readFile(filepath.Join(config.Dir, nomadFile))
	if err != nil {
		return nil, err
	}
	after := withoutMarked(string(f.text), "")
	if err := config.refuseBlocks(f.path, after, o.Force); err != nil {
		return nil, err
	}
	switch {
	case !f.exists:
	case after == "":
		plan.remove(f)
	default:
		plan.change(f, []byte(after))
	}
	return plan, nil
}

// refuseBlocks returns an error if a plugin has a block that stays: the agent does not start with one whose plugin is not there. after
// is what remains of our own file.
func (c *NomadConfig) refuseBlocks(ownFile, after string, force bool) error {
	rest := &NomadConfig{Plugins: maps.Clone(c.Plugins)}
	if _, err := rest.parse(ownFile, after, rest.Plugins); err != nil {
		return err
	}
	for _, name := range nomadPlugins {
		if file, found := rest.Plugins[name]; found && !force {
			return fmt.Errorf("%s has a block plugin %q that tranche install did not write, and the agent does not start with it once "+
				"the plugin is gone: remove the block first, or use --force; nothing was changed", file, name)
		}
	}
	return nil
}

// NomadConfig is what is read of an agent's configuration.
type NomadConfig struct {
	// Dir is the directory of the configuration.
	Dir string
	// PluginDir is where the agent looks for plugins, "" if its configuration does not say.
	PluginDir string
	// Plugins are the plugins that have a block outside our own file, and the file.
	Plugins map[string]string
	// Configured are those that have a block anywhere.
	Configured []string

	// AllocationMetrics says that the agent publishes the statistics of tasks, and metricsFile which file besides our own says
	// whether it does.
	AllocationMetrics bool
	metricsFile       string

	// blocks are all blocks of plugins, in the order in which the agent reads them.
	blocks []pluginBlock
}

// pluginBlock is what a file says of a plugin.
type pluginBlock struct {
	name, file string
	config     map[string]any
}

// ReadNomad reads the agent's configuration: a directory, or one file in it.
func ReadNomad(path string) (*NomadConfig, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read Nomad's configuration: %w; name the directory that the agent is given by -config "+
			"with --config", err)
	}
	if !info.IsDir() {
		path = filepath.Dir(path)
	}
	c := &NomadConfig{Dir: path, Plugins: map[string]string{}}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read Nomad's configuration: %w", err)
	}
	var dataDir string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".hcl" && ext != ".json" {
			continue
		}
		if err := c.read(filepath.Join(path, e.Name()), &dataDir); err != nil {
			return nil, err
		}
	}
	if c.PluginDir == "" && dataDir != "" {
		c.PluginDir = filepath.Join(dataDir, "plugins") // as the agent does
	}
	return c, nil
}

// read adds what one file says.
func (c *NomadConfig) read(path string, dataDir *string) error {
	f, err := readFile(path)
	if err != nil {
		return err
	}
	var others map[string]string
	if filepath.Base(path) != nomadFile {
		others = c.Plugins
	}
	whole, err := c.parse(path, string(f.text), others)
	if err != nil {
		return err
	}
	if on, found := innerBlock(whole["telemetry"])["publish_allocation_metrics"]; found {
		c.AllocationMetrics = c.AllocationMetrics || fmt.Sprint(on) == "true" // as the agent merges them
		if others != nil {
			c.metricsFile = path
		}
	}
	pluginDir, _ := whole["plugin_dir"].(string)
	data, _ := whole["data_dir"].(string)
	c.PluginDir, *dataDir = orDefault(pluginDir, c.PluginDir), orDefault(data, *dataDir)
	return nil
}

// parse adds the blocks of plugins in a text, and to others, if it is not nil, the file that has them.
func (c *NomadConfig) parse(path, text string, others map[string]string) (whole map[string]any, err error) {
	if err := hcl.Unmarshal([]byte(text), &whole); err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w; correct it first, nothing was changed", path, err)
	}
	blocks, _ := whole["plugin"].([]map[string]any)
	for _, block := range blocks {
		for name, content := range block {
			c.Configured = append(c.Configured, name)
			c.blocks = append(c.blocks, pluginBlock{name, path, innerBlock(innerBlock(content)["config"])})
			if others != nil {
				others[name] = path
			}
		}
	}
	return whole, nil
}

// innerBlock is what HCL makes of a block: a list of objects, all of whose members belong to it.
func innerBlock(decoded any) map[string]any {
	members := map[string]any{}
	objects, _ := decoded.([]map[string]any)
	for _, object := range objects {
		maps.Copy(members, object)
	}
	return members
}

// Block is the content of a plugin's block, and the file that has it. Of several the agent takes the last that has options.
func (c *NomadConfig) Block(name string) (config map[string]any, file string) {
	for _, b := range c.blocks {
		if b.name == name && (file == "" || len(b.config) > 0) {
			config, file = b.config, b.file
		}
	}
	return config, file
}

// missingBlocks writes the blocks of those plugins that have none, and that of the statistics, text being our own file as it is: how the GPUs are
// shared there stays as it is.
func (c *NomadConfig) missingBlocks(o Options, text string) []string {
	var blocks [][]string
	if _, found := c.Plugins[nomadPlugins[0]]; !found {
		device := markedBlock(text, nomadPlugins[0])
		if device == nil {
			device = c.deviceBlock()
		}
		blocks = append(blocks, device)
		if c.nvidiaToTurnOff() != nil {
			blocks = append(blocks, c.nvidiaOff())
		}
	}
	if _, found := c.Plugins[nomadPlugins[1]]; !found {
		prefix := prefixOf(o.RuntimePath)
		blocks = append(blocks, pluginLines(nomadPlugins[1],
			fmt.Sprintf("shadow_dir = %q", filepath.Join(prefix, "lib/tranche")),
			fmt.Sprintf("hook_path  = %q", filepath.Join(prefix, "bin/tranche-hook"))))
	}
	if c.metricsFile == "" {
		blocks = append(blocks, []string{"# Nomad publishes the statistics of tasks.", "telemetry {", "  publish_allocation_metrics = true", "}"})
	}
	var lines []string
	for i, block := range blocks {
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, block...)
	}
	return lines
}

// deviceBlock is the device plugin's block on a node that has none yet.
func (c *NomadConfig) deviceBlock() []string {
	if nvidia := c.nvidiaToTurnOff(); nvidia != nil {
		return nvidia.converted()
	}
	return pluginLines(nomadPlugins[0], `slice_memory = "1GiB" # GPU memory of one slice`)
}

// pluginLines is a plugin's block.
func pluginLines(name string, options ...string) []string {
	lines := []string{fmt.Sprintf("plugin %q {", name), "  config {"}
	for _, option := range options {
		lines = append(lines, "    "+option)
	}
	return append(lines, "  }", "}")
}

// markedBlock is a plugin's block between our marks; nil if there is none.
func markedBlock(text, name string) []string {
	_, marked, _ := strings.Cut(text, beginMark+"\n")
	marked, _, _ = strings.Cut(marked, endMark)
	lines := strings.Split(marked, "\n")
	begin := slices.Index(lines, fmt.Sprintf("plugin %q {", name))
	if begin < 0 {
		return nil
	}
	length := slices.Index(lines[begin:], "}")
	if length < 0 {
		return nil
	}
	return lines[begin : begin+length+1]
}

// OwnBlocks reports whether a plugin of ours has a block.
func (c *NomadConfig) OwnBlocks() bool {
	return slices.ContainsFunc(c.Configured, func(name string) bool { return strings.HasSuffix(name, "-tranche") })
}
