package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

// installed is a node on which all of one version is installed, and nothing else.
func installed(t *testing.T, version string) *Node {
	t.Helper()
	root := t.TempDir()
	n := &Node{Version: version, Root: root, RuntimePath: filepath.Join(root, "usr/bin/tranche-runtime")}
	n.Config = runtime.Config{Node: edit.Node{
		HookPath: filepath.Join(root, "usr/bin/tranche-hook"), CLIPath: filepath.Join(root, "usr/bin/tranche"),
		ShadowDir: filepath.Join(root, "usr/lib/tranche"),
	}}
	n.write(t, "/etc/nomad.d/nomad.hcl", []byte(`plugin_dir = "/opt/plugins"`))
	n.writeProgram(t, n.RuntimePath, `[ "$*" = --tranche-version ] && echo tranche-runtime version `+version)
	n.writeProgram(t, n.Config.HookPath, `[ "$*" = --version ] && echo tranche-hook version `+version)
	n.writeProgram(t, n.Config.CLIPath, `[ "$*" = --version ] && echo `+version)
	for _, name := range nomadPluginNames {
		n.writeProgram(t, n.path("/opt/plugins/"+name), `[ "$*" = --version ] && echo `+name+" version "+version)
	}
	for _, file := range shadow.Files() {
		n.write(t, "/usr/lib/tranche/"+file, shadowtest.OfVersion(t, version))
	}
	return n
}

func (n *Node) write(t *testing.T, name string, content []byte) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(n.path(name)), 0o755))
	must.NoError(t, os.WriteFile(n.path(name), content, 0o755))
}

func (n *Node) writeProgram(t *testing.T, path, script string) {
	t.Helper()
	name, err := filepath.Rel(n.Root, path)
	must.NoError(t, err)
	n.write(t, name, []byte("#!/bin/sh\n"+script+"\n"))
}

// A node without Nomad's plugins gets none by the remedy.
func TestInstalledVersions_WithoutNomad(t *testing.T) {
	n := installed(t, "v2")
	must.NoError(t, os.RemoveAll(n.path("/opt")))
	n.Version = "v3"
	must.Eq(t, "finish the upgrade: tranche install --from BUILD-FOLDER", installedVersions(t.Context(), n).remedy)
}

func TestInstalledVersions(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, n *Node)
		state  State
		found  string
	}{
		"one build":             {func(*testing.T, *Node) {}, OK, "all have version v2"},
		"no plugins":            {func(t *testing.T, n *Node) { must.NoError(t, os.RemoveAll(n.path("/opt"))) }, OK, "all have version v2"},
		"nothing installed":     {func(t *testing.T, n *Node) { must.NoError(t, os.RemoveAll(n.Root)) }, OK, "nothing is installed"},
		"another tranche looks": {func(_ *testing.T, n *Node) { n.Version = "v3" }, Warning, "tranche has version v3, but "},
		"an older hook": {func(t *testing.T, n *Node) {
			n.writeProgram(t, n.Config.HookPath, "echo tranche-hook version v1")
		}, Warning, "usr/bin/tranche-hook has v1"},
		"a hook from before it had versions": {func(t *testing.T, n *Node) {
			n.writeProgram(t, n.Config.HookPath, "exit 1")
		}, Warning, "usr/bin/tranche-hook is unknown (--version: exit status 1)"},
		"an older runtime": {func(t *testing.T, n *Node) {
			n.writeProgram(t, n.RuntimePath, "echo tranche-runtime version v1")
		}, Warning, "usr/bin/tranche-runtime has v1"},
		"an older library": {func(t *testing.T, n *Node) {
			n.write(t, "/usr/lib/tranche/libnvidia-ml.so.1", shadowtest.OfVersion(t, "v1"))
		}, Warning, "usr/lib/tranche/libnvidia-ml.so.1 has v1"},
		"the driver's library": {func(t *testing.T, n *Node) {
			n.write(t, "/usr/lib/tranche/libcuda.so.1", shadowtest.Library(t, "libcuda.so.1"))
		}, Warning, "usr/lib/tranche/libcuda.so.1 is unknown (it has no section"},
		"an older plugin": {func(t *testing.T, n *Node) {
			n.writeProgram(t, n.path("/opt/plugins/nomad-device-tranche"), "echo nomad-device-tranche version v1")
		}, Warning, "opt/plugins/nomad-device-tranche has v1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := installed(t, "v2")
			tc.change(t, n)
			f := installedVersions(t.Context(), n)
			must.Eq(t, tc.state, f.state, must.Sprintf("%+v", f))
			must.StrContains(t, f.found, tc.found)
			must.NotEq(t, "", f.looked)
			if tc.state == Warning {
				must.Eq(t, "finish the upgrade: tranche install nomad --from BUILD-FOLDER", f.remedy)
			}
		})
	}
}

// Nomad runs the plugins of before an upgrade until it is restarted.
func TestNomadPlugins_Old(t *testing.T) {
	n := installed(t, "v2")
	must.Eq(t, "has both plugins", nomadPlugins(t.Context(), n).found)
	plugin := exec.Command(n.path("/opt/plugins/nomad-driver-tranche"), "infinity")
	plugin.Path = "/bin/sleep" // and not what is installed
	must.NoError(t, plugin.Start())
	t.Cleanup(func() { _ = plugin.Process.Kill(); _ = plugin.Wait() })
	f := nomadPlugins(t.Context(), n)
	must.Eq(t, Warning, f.state)
	must.StrContains(t, f.found, "Nomad runs the old nomad-driver-tranche")
	must.StrContains(t, f.remedy, "systemctl restart nomad")
}
