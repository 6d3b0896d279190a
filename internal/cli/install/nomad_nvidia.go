package install

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// nvidiaPlugins are the names by which nomad-device-nvidia is configured: that of its program, and those of its own pages.
// It offers the same GPUs as our device plugin. Nomad asks both, and would count a GPU twice.
var nvidiaPlugins = []string{"nomad-device-nvidia", "nvidia-gpu", "nvidia"}

var gpuUUID = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// nvidiaBlock is the configuration of nomad-device-nvidia.
type nvidiaBlock struct {
	name, file string
	// config is what the agent goes by: the last block that has options, as files are merged.
	config map[string]any
}

// nvidia is nomad-device-nvidia's configuration by the files that are accepted; nil if it has none.
func (c *NomadConfig) nvidia(accept func(file string) bool) *nvidiaBlock {
	var found *nvidiaBlock
	for _, b := range c.blocks {
		if !slices.Contains(nvidiaPlugins, b.name) || !accept(b.file) {
			continue
		}
		if found == nil {
			found = &nvidiaBlock{}
		}
		found.name, found.file = b.name, b.file
		if len(b.config) > 0 {
			found.config = b.config
		}
	}
	return found
}

// nvidiaToTurnOff is nomad-device-nvidia's configuration if the plugin would run but for our own file, which stands in
// for it: not where an operator has configured both.
func (c *NomadConfig) nvidiaToTurnOff() *nvidiaBlock {
	nvidia := c.nvidia(func(file string) bool { return filepath.Base(file) != nomadFile })
	if _, both := c.Plugins[nomadPlugins[0]]; both || nvidia == nil || !nvidia.enabled() {
		return nil
	}
	return nvidia
}

// BothDevicePlugins reports whether nomad-device-nvidia and our device plugin are both to run, which file configures the
// former, and which GPUs are left out by one of them.
func (c *NomadConfig) BothDevicePlugins() (file string, ignored []string, both bool) {
	nvidia := c.nvidia(func(string) bool { return true })
	ours := nvidiaBlock{}
	for _, b := range c.blocks {
		if b.name == nomadPlugins[0] && len(b.config) > 0 {
			ours.config = b.config
		}
	}
	if nvidia == nil || !nvidia.enabled() || !slices.Contains(c.Configured, nomadPlugins[0]) || !ours.enabled() {
		return "", nil, false
	}
	return nvidia.file, append(nvidia.ignored(), ours.ignored()...), true
}

func (b *nvidiaBlock) enabled() bool {
	enabled, set := b.config["enabled"].(bool)
	return enabled || !set
}

func (b *nvidiaBlock) ignored() []string {
	var ids []string
	list, _ := b.config["ignored_gpu_ids"].([]any)
	for _, element := range list {
		ids = append(ids, fmt.Sprint(element))
	}
	return ids
}

// converted is our device plugin's block that offers what nomad-device-nvidia offers.
func (b *nvidiaBlock) converted() []string {
	options := []string{`mode = "exclusive" # whole GPUs, as nomad-device-nvidia`}
	var quoted []string
	for _, id := range b.ignored() {
		if gpuUUID.MatchString(id) {
			quoted = append(quoted, fmt.Sprintf("%q", id))
		}
	}
	if len(quoted) > 0 {
		options = append(options, "ignored_gpu_ids = ["+strings.Join(quoted, ", ")+"]")
	}
	if period, set := b.config["fingerprint_period"].(string); set {
		options = append(options, fmt.Sprintf("fingerprint_period = %q", period))
	}
	return pluginLines(nomadPlugins[0], options...)
}

// nvidiaOff is a block that turns nomad-device-nvidia off: the agent takes what the last file says.
func (c *NomadConfig) nvidiaOff() []string {
	nvidia := c.nvidiaToTurnOff()
	return append([]string{"# Two plugins that offer the same GPUs would have them counted twice. This turns off what " + nvidia.file + " configures."},
		pluginLines(nvidia.name, "enabled = false")...)
}

// checkNvidia says what becomes of nomad-device-nvidia, or why it can't be.
func (c *NomadConfig) checkNvidia(plan *Plan) error {
	if file, _, both := c.BothDevicePlugins(); both && c.Plugins[nomadPlugins[0]] != "" {
		plan.note("%s configures nomad-device-nvidia, and %s Tranche's device plugin: Nomad counts a GPU twice that both "+
			"offer. Set enabled = false for one, or leave each GPU to one of them with ignored_gpu_ids", file, c.Plugins[nomadPlugins[0]])
	}
	nvidia := c.nvidiaToTurnOff()
	if nvidia == nil {
		return nil
	}
	if filepath.Base(nvidia.file) > nomadFile {
		return fmt.Errorf("%s configures nomad-device-nvidia, which offers the same GPUs: Nomad would count them twice. The agent "+
			"reads that file after %s, so that it cannot be turned off here: set enabled = false in its block; nothing was changed",
			nvidia.file, nomadFile)
	}
	plan.note("nomad-device-nvidia is turned off, and Tranche's plugin offers the same whole GPUs in its place: "+
		"docs/from-nomad-device-nvidia.md says what becomes of running tasks. Once no task runs that it reserved a GPU for, its "+
		"block in %s and its program can go; then run this again", nvidia.file)
	for _, id := range nvidia.ignored() {
		if !gpuUUID.MatchString(id) {
			plan.note("ignored_gpu_ids in %s: %q was not taken over, since it is not the UUID of a GPU", nvidia.file, id)
		}
	}
	return nil
}
