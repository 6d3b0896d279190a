package install

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestDockerWithoutConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc/docker/daemon.json")
	o := Options{RuntimePath: testRuntime, ConfigFile: path}
	entry := applied(t, Docker{}.Install, o, Entry{})
	must.Eq(t, "{\n    \"runtimes\": {\n        \"tranche\": {\n            \"path\": \""+testRuntime+"\"\n        }\n    }\n}\n",
		read(t, path))
	applied(t, Docker{}.Uninstall, Options{ConfigFile: path}, entry)
	must.FileNotExists(t, path)
}

// What was added since then stays, in a file that would otherwise go.
func TestDockerUninstallAfterOthersEdits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.json")
	entry := applied(t, Docker{}.Install, Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	write(t, path, `{"runtimes": {"tranche": {"path": "/usr/bin/tranche-runtime"}, "kata": {"path": "kata"}}, "debug": true}`)
	applied(t, Docker{}.Uninstall, Options{ConfigFile: path}, entry)
	must.Eq(t, `{"runtimes": { "kata": {"path": "kata"}}, "debug": true}`, read(t, path))
}

func TestDockerUninstallRefusesWhatDepends(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "daemon.json"), `{"default-runtime": "tranche"}`)
	entry := applied(t, Docker{}.Install, Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	_, err := Docker{}.Uninstall(t.Context(), Options{ConfigFile: path}, entry)
	must.ErrorContains(t, err, `still has "default-runtime": "tranche"`)
	must.StrContains(t, read(t, path), testRuntime)
	applied(t, Docker{}.Uninstall, Options{ConfigFile: path, Force: true}, entry)
	must.Eq(t, "{}", read(t, path))
}

// Without the record the runtime goes all the same; what cannot be known to be ours stays.
func TestDockerUninstallWithoutARecord(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "daemon.json"), read(t, "testdata/docker/plain.in"))
	applied(t, Docker{}.Install, Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	applied(t, Docker{}.Uninstall, Options{ConfigFile: path}, Entry{})
	must.StrNotContains(t, read(t, path), "tranche")
	must.StrContains(t, read(t, path), `"runtimes": {}`)
}
