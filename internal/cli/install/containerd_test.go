package install

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/shoenig/test/must"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// loaded is what containerd 2.4's own loader makes of a configuration.
func loaded(t *testing.T, path string) map[string]any {
	t.Helper()
	c := &config.Config{
		StreamProcessors: map[string]config.StreamProcessor{}, ProxyPlugins: map[string]config.ProxyPlugin{},
		Timeouts: map[string]string{},
	}
	must.NoError(t, config.LoadConfig(context.Background(), path, c))
	return c.Plugins
}

const v3WithImports = `version = 3
imports = ["conf.d/*.toml"]

[plugins."io.containerd.cri.v1.runtime"]
  enable_selinux = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`

// Where containerd merges what it imports, ours is a file of its own, and the main file stays as it is.
func TestContainerdDropIn(t *testing.T) {
	main := write(t, filepath.Join(t.TempDir(), "config.toml"), v3WithImports)
	dropIn := filepath.Join(filepath.Dir(main), "conf.d", containerdDropIn)
	o := Options{RuntimePath: testRuntime, ConfigFile: main, SetDefault: true}

	entry := applied(t, Containerd{Version: "2.4"}.Install, o, Entry{})
	must.Eq(t, v3WithImports, read(t, main))
	must.StrContains(t, read(t, dropIn), "version = 3\n")
	plugins := loaded(t, main)
	const cri = "io.containerd.cri.v1.runtime"
	must.Eq(t, any(testRuntime), lookup(plugins, cri, "containerd", "runtimes", "tranche", "options", "BinaryName"))
	must.Eq(t, any("tranche"), lookup(plugins, cri, "containerd", "default_runtime_name"))
	must.Eq(t, any(true), lookup(plugins, cri, "enable_selinux"))
	must.NotNil(t, lookup(plugins, cri, "containerd", "runtimes", "runc"))

	again, err := Containerd{Version: "2.4"}.Install(t.Context(), o, entry)
	must.NoError(t, err)
	must.SliceEmpty(t, again.Changes)
	applied(t, Containerd{Version: "2.4"}.Uninstall, Options{ConfigFile: main}, entry)
	must.FileNotExists(t, dropIn)
	must.Eq(t, v3WithImports, read(t, main))
}

// Before 2.1 a file that is imported replaces the section of the CRI plugin, so the runtime has to stand in that file,
// with everything else that is there.
func TestContainerdBeforeItMerged(t *testing.T) {
	dir := t.TempDir()
	const mainText = "version = 2\nimports = [\"" + "conf.d/*.toml\"]\n"
	main := write(t, filepath.Join(dir, "config.toml"), mainText)
	nvidia := write(t, filepath.Join(dir, "conf.d/99-nvidia.toml"), `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
`)
	write(t, filepath.Join(dir, "conf.d/10-other.toml"), "version = 2\noom_score = 1\n")
	entry := applied(t, Containerd{Version: "1.7"}.Install, Options{RuntimePath: testRuntime, ConfigFile: main}, Entry{})
	must.Eq(t, mainText, read(t, main))
	must.StrContains(t, read(t, nvidia), "runtimes.tranche]")
	applied(t, Containerd{Version: "1.7"}.Uninstall, Options{ConfigFile: main}, entry)
	must.StrNotContains(t, read(t, nvidia), "tranche")
}

// Without a configuration one is made, of the version that the containerd which is there knows, and removed again.
func TestContainerdWithoutConfiguration(t *testing.T) {
	for version, line := range map[string]string{"": "version = 2", "1.6": "version = 2", "2.0": "version = 3"} {
		path := filepath.Join(t.TempDir(), "etc/containerd/config.toml")
		entry := applied(t, Containerd{Version: orDefault(version, "?")}.Install,
			Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
		must.StrContains(t, read(t, path), line+"\n")
		must.NotNil(t, loaded(t, path))
		applied(t, Containerd{Version: version}.Uninstall, Options{ConfigFile: path}, entry)
		must.FileNotExists(t, path)
	}
}

func TestContainerdWithAnEmptyConfiguration(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "config.toml"), "\n")
	applied(t, Containerd{Version: "1.6"}.Install, Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.StrContains(t, read(t, path), "version = 2\n")
}

func TestContainerdNotesADisabledPlugin(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "config.toml"), `disabled_plugins = ["cri"]`)
	plan, err := Containerd{Version: "1.7"}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.NoError(t, err)
	must.Len(t, 1, plan.Notes)
	must.StrContains(t, plan.Notes[0], "disables containerd's CRI plugin")
}

// What somebody did to the file since then stays when ours is taken out, and so does a default that is theirs.
func TestContainerdUninstallAfterOthersEdits(t *testing.T) {
	before := read(t, "testdata/containerd/nvidia-default.in")
	path := write(t, filepath.Join(t.TempDir(), "config.toml"), before)
	o := Options{RuntimePath: testRuntime, ConfigFile: path, SetDefault: true}
	c := Containerd{Version: "1.7"}
	entry := applied(t, c.Install, o, Entry{})
	edited := strings.Replace(read(t, path), "pause:3.9", "pause:3.10", 1) + "\n[debug]\nlevel = \"debug\"\n"
	write(t, path, edited)
	applied(t, c.Uninstall, Options{ConfigFile: path}, entry)
	must.Eq(t, strings.Replace(before, "pause:3.9", "pause:3.10", 1)+"\n[debug]\nlevel = \"debug\"\n", read(t, path))

	entry = applied(t, c.Install, o, Entry{})
	write(t, path, strings.Replace(read(t, path), `default_runtime_name = "tranche"`, `default_runtime_name = "runc"`, 1))
	applied(t, c.Uninstall, Options{ConfigFile: path}, entry)
	must.StrContains(t, read(t, path), "\n      default_runtime_name = \"runc\"\n")
	must.StrNotContains(t, read(t, path), "tranche")
}

func TestContainerdUninstallRefusesWhatDepends(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "config.toml"), "version = 2\n")
	c := Containerd{Version: "1.7"}
	entry := applied(t, c.Install, Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	byHand := read(t, path) + "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"tranche\"\n"
	write(t, path, byHand)
	_, err := c.Uninstall(t.Context(), Options{ConfigFile: path}, entry)
	must.ErrorContains(t, err, `still has default_runtime_name = "tranche"`)
	must.Eq(t, byHand, read(t, path))
	applied(t, c.Uninstall, Options{ConfigFile: path, Force: true}, entry)
	must.StrNotContains(t, read(t, path), "tranche")
	must.NotNil(t, loaded(t, path))
}
