package install

import (
	"os"
	"os/exec"
	"path/filepath"
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
