package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
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

// A block that an operator has written stays, and the agent does not start with it once the plugins are gone.
func TestNomadUninstall_OthersBlocks(t *testing.T) {
	dir := t.TempDir()
	main := write(t, filepath.Join(dir, "a.hcl"), "plugin_dir = \"/opt/plugins\"\nplugin \"nomad-driver-tranche\" {\n}\n")
	entry := applied(t, Nomad{}.Install, Options{RuntimePath: testRuntime, ConfigFile: dir}, Entry{})
	_, err := Nomad{}.Uninstall(t.Context(), Options{}, entry)
	must.ErrorContains(t, err, main+` has a block plugin "nomad-driver-tranche"`)
	applied(t, Nomad{}.Uninstall, Options{Force: true}, entry)
	must.FileNotExists(t, filepath.Join(dir, nomadFile))

	// One in our own file, which they have taken over.
	write(t, main, "plugin_dir = \"/opt/plugins\"\n")
	own := write(t, filepath.Join(dir, nomadFile), "plugin \"nomad-device-tranche\" {\n}\n")
	_, err = Nomad{}.Uninstall(t.Context(), Options{ConfigFile: dir}, Entry{})
	must.ErrorContains(t, err, own+` has a block plugin "nomad-device-tranche"`)
}

// Where all blocks are an operator's the record has no file, and the configuration is Nomad's own, not that of the current directory.
func TestNomadUninstall_WithoutAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "x.hcl", "plugin \"nomad-driver-tranche\" {\n}\n")
	_, err := Nomad{}.Uninstall(t.Context(), Options{}, Entry{PluginDir: "/opt/plugins"})
	must.NoError(t, err)
}

// Statistics of tasks need a setting of the agent's, which is set unless an operator has.
func TestNomad_AllocationMetrics(t *testing.T) {
	for stated, want := range map[string]bool{
		"": true, "telemetry {\n prometheus_metrics = true\n}\n": true, "telemetry {\n publish_allocation_metrics = true\n}\n": true,
		"telemetry {\n publish_allocation_metrics = false\n}\n": false,
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "nomad.hcl"), "plugin_dir = \"/opt/plugins\"\n"+stated)
		o := Options{RuntimePath: testRuntime, ConfigFile: dir}
		entry := applied(t, Nomad{}.Install, o, Entry{})
		config, err := ReadNomad(dir)
		must.NoError(t, err)
		must.Eq(t, want, config.AllocationMetrics, must.Sprint(stated))
		again, err := Nomad{}.Install(t.Context(), o, entry)
		must.NoError(t, err)
		must.SliceEmpty(t, again.Changes)
		must.Eq(t, !want, slices.ContainsFunc(again.Notes, func(note string) bool {
			return strings.Contains(note, "publish_allocation_metrics = false")
		}))
		applied(t, Nomad{}.Uninstall, Options{ConfigFile: dir}, entry)
		must.FileNotExists(t, filepath.Join(dir, nomadFile))
	}
}

func TestNomadErrors(t *testing.T) {
	dir := t.TempDir()
	o := Options{RuntimePath: testRuntime, ConfigFile: dir}
	_, err := Nomad{}.Install(t.Context(), o, Entry{})
	must.ErrorContains(t, err, "set --plugin-dir")
	broken := write(t, filepath.Join(dir, "x.hcl"), "plugin \"a\" {\n")
	_, err = Nomad{}.Install(t.Context(), o, Entry{})
	must.ErrorContains(t, err, broken+" cannot be read")
	o.SetDefault = true
	_, err = Nomad{}.Install(t.Context(), o, Entry{})
	must.ErrorContains(t, err, "--set-default is for container engines")
	_, err = Nomad{}.Install(t.Context(), Options{ConfigFile: filepath.Join(dir, "nowhere")}, Entry{})
	must.ErrorContains(t, err, "read Nomad's configuration")
}

// A plugin is old while a process runs another program than lies in the plugin directory.
func TestOldPlugins(t *testing.T) {
	dir := t.TempDir()
	plugin := filepath.Join(dir, "nomad-driver-tranche")
	put := func(program, more string) {
		content := read(t, program) + more
		must.NoError(t, os.Rename(write(t, filepath.Join(dir, "new"), content), plugin))
		must.NoError(t, os.Chmod(plugin, 0o755))
	}
	old := func(want ...string) {
		t.Helper()
		found, err := OldPlugins(dir)
		must.NoError(t, err)
		must.Eq(t, want, found)
	}
	put("/bin/sleep", "")
	old()
	process := exec.Command(plugin, "infinity")
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	old()
	put("/bin/sleep", "")
	old() // another file of the same content
	put("/bin/sleep", "x")
	old("nomad-driver-tranche")
	must.NoError(t, os.Remove(plugin))
	old()
	put("/bin/sleep", "x")
	must.NoError(t, process.Process.Kill())
	_ = process.Wait()
	old()
}

// What a container's process calls itself does not make a plugin old.
func TestOldPlugins_NotOfContainers(t *testing.T) {
	needs.Root(t, "to have a process with mounts of its own")
	dir := t.TempDir()
	plugin := filepath.Join(dir, "nomad-driver-tranche")
	process := exec.Command(plugin, "infinity")
	process.Path, process.SysProcAttr = "/bin/sleep", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	write(t, plugin, "x")
	found, err := OldPlugins(dir)
	must.NoError(t, err)
	must.SliceEmpty(t, found)
}
