package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// The package of an engine, which comes later, stops at a configuration file that is there before. What is on this machine is hidden.
func TestInstall_EngineIsAbsent(t *testing.T) {
	needs.Sandbox(t, "to hide engines")
	was := programs
	t.Cleanup(func() { programs = was })
	programs = map[string][]string{"docker": {"/absent/dockerd"}, "containerd": {"/absent/containerd"}, "podman": {"/absent/podman"}}
	t.Setenv("PATH", t.TempDir())
	for name, file := range map[string]string{
		"docker": defaultDockerConfig, "containerd": defaultContainerdConfig, "podman": filepath.Join(podmanDropIns, podmanDropIn),
	} {
		if _, err := os.Stat(file); err == nil {
			t.Logf("%s has a configuration here", name)
			continue
		}
		_, err := Engines()[name].Install(t.Context(), Options{RuntimePath: testRuntime}, Entry{})
		must.ErrorContains(t, err, name+" is not installed (there is no /absent/")
		must.ErrorContains(t, err, "--config")
		_, err = Engines()[name].Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: filepath.Join(t.TempDir(), "x.conf")}, Entry{})
		must.NoError(t, err)
	}
}
