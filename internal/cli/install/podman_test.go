package install

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestPodmanDropIn(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "containers.conf"), "[engine]\nruntime = \"crun\"\n")
	path := filepath.Join(dir, "containers.conf.d", podmanDropIn)
	o := Options{RuntimePath: testRuntime, ConfigFile: path, SetDefault: true}
	entry := applied(t, Podman{}.Install, o, Entry{})
	must.Eq(t, beginMark+"\n[engine]\nruntime = \"tranche\"\n[engine.runtimes]\ntranche = [\""+testRuntime+"\"]\n"+endMark+"\n",
		read(t, path))
	applied(t, Podman{}.Uninstall, Options{ConfigFile: path}, entry)
	must.FileNotExists(t, path)
}

func TestPodmanUninstallRefusesWhatDepends(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "containers.conf.d", podmanDropIn)
	entry := applied(t, Podman{}.Install, Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	main := write(t, filepath.Join(dir, "containers.conf"), "[engine]\nruntime = \"tranche\"\n")
	_, err := Podman{}.Uninstall(t.Context(), Options{ConfigFile: path}, entry)
	must.ErrorContains(t, err, main+` still has runtime = "tranche"`)
	must.FileExists(t, path)
	applied(t, Podman{}.Uninstall, Options{ConfigFile: path, Force: true}, entry)
	must.FileNotExists(t, path)
}

// Podman would stop at the broken file whatever we write.
func TestPodmanBrokenNeighbour(t *testing.T) {
	dir := t.TempDir()
	broken := write(t, filepath.Join(dir, "containers.conf.d/10-broken.conf"), "[engine")
	path := filepath.Join(dir, "containers.conf.d", podmanDropIn)
	_, err := Podman{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.ErrorContains(t, err, broken+" is no TOML")
	must.FileNotExists(t, path)
}
