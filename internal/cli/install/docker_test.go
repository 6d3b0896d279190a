package install

import (
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
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
	needs.Root(t, "to be as Docker")
	stop := proctest.Named(t, nil, "/usr/sbin/dockerd", "--add-runtime=kata=/usr/bin/kata")
	path := filepath.Join(t.TempDir(), "daemon.json")
	_, err := Docker{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.ErrorContains(t, err, "runs with --add-runtime=kata=/usr/bin/kata on its command line")
	stop()
	_, err = Docker{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.NoError(t, err)
}

// A dockerd in a container, such as Docker in Docker, or of a user reads other files.
func TestDocker_DaemonsOfOthers(t *testing.T) {
	needs.Sandbox(t, "to see no other processes")
	const flag = "--add-runtime=kata=/usr/bin/kata"
	proctest.Named(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, "dockerd", flag)
	contained := exec.CommandContext(t.Context(), "unshare", "--mount", "bash", "-c",
		"mount -t tmpfs tmpfs /etc && exec -a dockerd sh -c 'echo runs; read line' "+flag)
	_, err := contained.StdinPipe()
	must.NoError(t, err)
	stdout, err := contained.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, contained.Start())
	t.Cleanup(func() { _ = contained.Wait() }) // t.Context has ended
	_, err = stdout.Read(make([]byte, 1))
	must.NoError(t, err)
	o := Options{RuntimePath: testRuntime, ConfigFile: filepath.Join(t.TempDir(), "daemon.json")}
	_, err = Docker{}.Install(t.Context(), o, Entry{})
	must.NoError(t, err)
	running, err := Running("docker")
	must.NoError(t, err)
	must.False(t, running)

	proctest.Named(t, nil, "dockerd", "-H", "fd://")
	running, err = Running("docker")
	must.NoError(t, err)
	must.True(t, running)
}

// Of the commands of Nomad's program only the agent reads a configuration.
func TestRunning_Nomad(t *testing.T) {
	needs.Sandbox(t, "to see no other processes")
	proctest.Named(t, nil, "/usr/bin/nomad", "monitor")
	running, err := Running("nomad")
	must.NoError(t, err)
	must.False(t, running)
	proctest.Named(t, nil, "/usr/bin/nomad", "agent", "-config", "/etc/nomad.d")
	running, err = Running("nomad")
	must.NoError(t, err)
	must.True(t, running)
}

func TestTaskContainers(t *testing.T) {
	needs.Sandbox(t, "to see no other processes")
	const id = "2a5c1b9e-0f43-7d6a-8b1c-9d0e1f2a3b4c-serve-web-0badcafe"
	for _, shim := range []struct{ namespace, id string }{
		{"gpu", id}, {"gpu", id}, {"nomad", "serve-2a5c1b9e-0f43-7d6a-8b1c-9d0e1f2a3b4c"}, {"moby", strings.Repeat("0a", 32)},
	} {
		proctest.Named(t, nil, "/usr/bin/containerd-shim-runc-v2", "-namespace", shim.namespace, "-id", shim.id)
	}
	proctest.Named(t, nil, "sleep", "-id", id+"0")
	tasks, err := TaskContainers()
	must.NoError(t, err)
	must.Eq(t, []string{id}, tasks)
}

// A restart of Docker stops its containers, unless it keeps them.
func TestDockerUninstall_Stops(t *testing.T) {
	needs.Sandbox(t, "to see no other processes")
	container := strings.Repeat("0a", 32)
	proctest.Named(t, nil, "/usr/bin/containerd-shim-runc-v2", "-namespace", "moby", "-id", container, "-address", "/run/c.sock")
	stops := func(text string) []string {
		path := write(t, filepath.Join(t.TempDir(), "daemon.json"), text)
		entry := applied(t, Docker{}.Install, Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
		plan, err := Docker{}.Uninstall(t.Context(), Options{ConfigFile: path}, entry)
		must.NoError(t, err)
		return plan.Stops
	}
	must.SliceContains(t, stops("{}"), container)
	must.SliceContains(t, stops(`{"live-restore": false}`), container)
	must.SliceEmpty(t, stops(`{"live-restore": true}`))
	must.SliceEmpty(t, stops(`{"runtimes": {"kata": {"path": "/kata"}}}`), must.Sprint("a reload does it"))
	proctest.Named(t, nil, "dockerd", "--live-restore")
	must.SliceEmpty(t, stops("{}"))
}
