package install

import (
	"os/exec"
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
	plan, err := Docker{}.Uninstall(t.Context(), Options{ConfigFile: path}, entry)
	must.NoError(t, err)
	must.Eq(t, []string{"systemctl", "restart", "docker"}, plan.Reload) // which a reload would not do
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

// A runtime that has our name and another program stays, unless we had written one there, which somebody has changed.
func TestDockerUninstallLeavesAnothersRuntime(t *testing.T) {
	const other = `{"runtimes": {"tranche": {"path": "/opt/other"}}}`
	path := write(t, filepath.Join(t.TempDir(), "daemon.json"), other)
	o := Options{ConfigFile: path}
	_, err := Docker{}.Uninstall(t.Context(), o, Entry{})
	must.ErrorContains(t, err, "that tranche install did not write")
	must.Eq(t, other, read(t, path))
	applied(t, Docker{}.Uninstall, o, Entry{File: path, Runtime: testRuntime, CreatedRuntimes: true})
	must.Eq(t, "{}", read(t, path))
}

// A dockerd with runtimes on its command line would not start any more with some in its file, too.
func TestDockerWithRuntimesOnItsCommandLine(t *testing.T) {
	daemon := exec.Command("/bin/sh", "-c", "echo runs; read x", "--add-runtime=kata=/usr/bin/kata")
	daemon.Args[0] = "dockerd"
	stdin, err := daemon.StdinPipe()
	must.NoError(t, err)
	stdout, err := daemon.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, daemon.Start())
	_, err = stdout.Read(make([]byte, 1))
	must.NoError(t, err)
	path := filepath.Join(t.TempDir(), "daemon.json")
	_, err = Docker{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.ErrorContains(t, err, "runs with --add-runtime=kata=/usr/bin/kata on its command line")
	must.NoError(t, stdin.Close())
	_ = daemon.Wait() // read fails at the end of its input
	_, err = Docker{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.NoError(t, err)
}
