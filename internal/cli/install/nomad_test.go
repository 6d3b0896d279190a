package install

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestNomad(t *testing.T) {
	dir := t.TempDir()
	main := write(t, filepath.Join(dir, "nomad.hcl"), "data_dir = \"/opt/nomad/data\"\nclient {\n  enabled = true\n}\n")
	plan, err := Nomad{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: dir}, Entry{})
	must.NoError(t, err)
	must.Eq(t, "/opt/nomad/data/plugins", plan.Entry.PluginDir)
	must.Len(t, 3, plan.Notes) // two plugins that are not there, and the docker driver's option

	o := Options{RuntimePath: testRuntime, ConfigFile: main}
	entry := applied(t, Nomad{}.Install, o, Entry{})
	config, err := ReadNomad(dir)
	must.NoError(t, err)
	must.SliceContainsAll(t, config.Configured, nomadPlugins)
	must.True(t, config.OwnBlocks())
	again, err := Nomad{}.Install(t.Context(), o, entry)
	must.NoError(t, err)
	must.SliceEmpty(t, again.Changes)
	applied(t, Nomad{}.Uninstall, Options{ConfigFile: dir}, entry)
	must.FileNotExists(t, filepath.Join(dir, nomadFile))
}

// A block that an operator has written is theirs.
func TestNomadKeepsOthersBlocks(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.json"), `{"plugin_dir": "/opt/plugins", "plugin": {"nomad-device-tranche": {"config": {}}}}`)
	applied(t, Nomad{}.Install, Options{RuntimePath: testRuntime, ConfigFile: dir}, Entry{})
	text := read(t, filepath.Join(dir, nomadFile))
	must.StrNotContains(t, text, "nomad-device-tranche")
	must.StrContains(t, text, `plugin "nomad-driver-tranche"`)
	must.StrContains(t, text, `"/usr/lib/tranche"`)
}

func TestNomadErrors(t *testing.T) {
	dir := t.TempDir()
	o := Options{RuntimePath: testRuntime, ConfigFile: dir}
	_, err := Nomad{}.Install(t.Context(), o, Entry{})
	must.ErrorContains(t, err, "name the directory with --plugin-dir")
	broken := write(t, filepath.Join(dir, "x.hcl"), "plugin \"a\" {\n")
	_, err = Nomad{}.Install(t.Context(), o, Entry{})
	must.ErrorContains(t, err, broken+" cannot be read")
	o.SetDefault = true
	_, err = Nomad{}.Install(t.Context(), o, Entry{})
	must.ErrorContains(t, err, "--set-default is for container engines")
	_, err = Nomad{}.Install(t.Context(), Options{ConfigFile: filepath.Join(dir, "nowhere")}, Entry{})
	must.ErrorContains(t, err, "read Nomad's configuration")
}
