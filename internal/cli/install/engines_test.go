package install_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/internal/cli/install"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// busybox is the whole image of the containers here. It has to be linked statically.
const busybox = "/bin/busybox"

// realEngine makes sure that a test may start an engine and change its configuration: what it does goes with the sandbox.
func realEngine(t *testing.T, programs ...string) (runtimePath string) {
	t.Helper()
	needs.Sandbox(t, "to start an engine")
	runtimePath = filepath.Join(os.Getenv("TRANCHE_BUILD"), "bin/tranche-runtime")
	needs.Programs(t, "to start an engine", append(programs, busybox, runtimePath)...)
	return runtimePath
}

// carryOut installs or uninstalls, and gives the entry that uninstalling needs.
func carryOut(t *testing.T, plan func(context.Context, install.Options, install.Entry) (*install.Plan, error),
	o install.Options, was install.Entry,
) install.Entry {
	t.Helper()
	p, err := plan(t.Context(), o, was)
	must.NoError(t, err)
	must.NoError(t, p.Apply(new(bytes.Buffer)))
	return p.Entry
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s %v: %s", name, args, out))
	return string(out)
}

// A containerd that runs with the configuration has a CRI plugin that took it, and knows the runtime.
func TestContainerdStartsWithIt(t *testing.T) {
	build := os.Getenv("TRANCHE_BUILD")
	for name, c := range map[string]struct {
		engine         install.Containerd
		binary, config string
		plugin         string
	}{
		"1.6":           {install.Containerd{Version: "1.6"}, "containerd", "version = 2\n", "io.containerd.grpc.v1.cri"},
		"1.6 version 1": {install.Containerd{Version: "1.6"}, "containerd", "", "io.containerd.grpc.v1.cri"},
		"2.4": {
			install.Containerd{Version: "2.4"}, filepath.Join(build, "tools/containerd/containerd"), "version = 3\n",
			"io.containerd.cri.v1.runtime",
		},
		"2.4 with drop-ins": {
			install.Containerd{Version: "2.4"}, filepath.Join(build, "tools/containerd/containerd"),
			"version = 3\nimports = [\"conf.d/*.toml\"]\n", "io.containerd.cri.v1.runtime",
		},
		"2.4 with an old configuration": {
			install.Containerd{Version: "2.4"}, filepath.Join(build, "tools/containerd/containerd"), "version = 2\n",
			"io.containerd.cri.v1.runtime",
		},
	} {
		t.Run(name, func(t *testing.T) {
			runtimePath := realEngine(t, c.binary)
			dir, err := os.MkdirTemp("", "c") // short, for the socket
			must.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			config := filepath.Join(dir, "config.toml")
			text := c.config + fmt.Sprintf("root = \"%[1]s/root\"\nstate = \"%[1]s/state\"\n[grpc]\naddress = \"%[1]s/c.sock\"\n", dir)
			must.NoError(t, os.WriteFile(config, []byte(text), 0o600))
			o := install.Options{RuntimePath: runtimePath, ConfigFile: config, SetDefault: true}
			entry := carryOut(t, c.engine.Install, o, install.Entry{})

			dump := output(t, c.binary, "--config", config, "config", "dump")
			must.StrContains(t, dump, runtimePath)
			must.StrContains(t, strings.ReplaceAll(dump, "'", `"`), `default_runtime_name = "tranche"`)
			criIsOK(t, c.binary, config, filepath.Join(dir, "c.sock"), c.plugin)

			carryOut(t, c.engine.Uninstall, install.Options{ConfigFile: config}, entry)
			must.StrNotContains(t, output(t, c.binary, "--config", config, "config", "dump"), "tranche-runtime")
			after, err := os.ReadFile(config)
			must.NoError(t, err)
			must.Eq(t, text, string(after))
		})
	}
}

// criIsOK starts containerd and asks it how its CRI plugin fares, which checks its configuration when it starts: a
// default runtime that has no table is an error there.
func criIsOK(t *testing.T, binary, config, socket, plugin string) {
	t.Helper()
	cmd := exec.Command(binary, "--config", config)
	log, err := os.Create(filepath.Join(filepath.Dir(config), "log"))
	must.NoError(t, err)
	defer log.Close()
	said := must.Func(func() string {
		text, err := os.ReadFile(log.Name())
		return fmt.Sprintf("%s%v", text, err)
	})
	cmd.Stdout, cmd.Stderr = log, log
	must.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}()
	var plugins []byte
	listening := func() (err error) {
		plugins, err = exec.CommandContext(t.Context(), "ctr", "--address", socket, "plugins", "ls").CombinedOutput()
		return err
	}
	must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(listening), wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)), said)
	kind, id, _ := strings.Cut(strings.Replace(plugin, ".v1.cri", ".v1 cri", 1), " ")
	if id == "" {
		kind, id = "io.containerd.cri.v1", "runtime"
	}
	for line := range strings.Lines(string(plugins)) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == kind && f[1] == id {
			must.Eq(t, "ok", f[len(f)-1], must.Sprint(line), said)
			return
		}
	}
	t.Fatalf("no plugin %s: %s", plugin, plugins)
}

// Docker takes the runtime up when it is told to reload, runs containers with it, and removes it again.
func TestDockerTakesItUp(t *testing.T) {
	runtimePath := realEngine(t, "dockerd", "docker", "containerd")
	must.NoError(t, node.FindDocker())
	dir, err := os.MkdirTemp("", "d")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c, err := node.StartContainerd(t.Context(), filepath.Join(dir, "c"), node.ContainerdOptions{})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Stop()) })
	d, err := node.StartDocker(t.Context(), filepath.Join(dir, "d"), c.Address)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, d.Stop()) })

	entry := carryOut(t, install.Docker{}.Install, install.Options{RuntimePath: runtimePath, SetDefault: true}, install.Entry{})
	reload(t, d)
	awaitRuntime(t, d, true)
	cmd := exec.CommandContext(t.Context(), "docker", "--host", d.Host, "import", "-", "busybox")
	cmd.Stdin = image(t)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	for _, args := range [][]string{{"--runtime", "tranche"}, {}} { // by name, and as the default
		run := append([]string{"--host", d.Host, "run", "--rm", "--network", "none"}, args...)
		must.Eq(t, "hello\n", output(t, "docker", append(run, "busybox", "busybox", "echo", "hello")...))
	}

	id := strings.TrimSpace(output(t, "docker", "--host", d.Host, "run", "--detach", "--rm", "--network", "none", "busybox", "busybox",
		"sleep", "infinity"))
	running, err := install.RuntimeContainers()
	must.NoError(t, err)
	must.SliceContains(t, running, id)
	plan, err := install.Docker{}.Uninstall(t.Context(), install.Options{}, entry)
	must.NoError(t, err)
	must.SliceContains(t, plan.Stops, id)
	output(t, "docker", "--host", d.Host, "kill", id)

	carryOut(t, install.Docker{}.Uninstall, install.Options{}, entry)
	_, err = os.Stat("/etc/docker/daemon.json")
	must.ErrorIs(t, err, os.ErrNotExist)
}

// reload is what `systemctl reload docker` does.
func reload(t *testing.T, d *node.Docker) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(d.Dir, "dockerd.pid"))
	must.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must.NoError(t, err)
	must.NoError(t, unix.Kill(pid, unix.SIGHUP))
}

func awaitRuntime(t *testing.T, d *node.Docker, there bool) {
	t.Helper()
	has := func() bool {
		out, err := exec.CommandContext(t.Context(), "docker", "--host", d.Host, "info", "--format", "{{json .}}").Output()
		var info struct {
			Runtimes       map[string]any
			DefaultRuntime string
		}
		return err == nil && json.Unmarshal(out, &info) == nil && (info.Runtimes["tranche"] != nil) == there &&
			(info.DefaultRuntime == "tranche") == there
	}
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(has), wait.Timeout(time.Minute), wait.Gap(50*time.Millisecond)))
}

// image is the file system of an image as an archive.
func image(t *testing.T) *bytes.Buffer {
	t.Helper()
	program, err := os.ReadFile(busybox)
	must.NoError(t, err)
	archive := new(bytes.Buffer)
	w := tar.NewWriter(archive)
	must.NoError(t, w.WriteHeader(&tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}))
	must.NoError(t, w.WriteHeader(&tar.Header{Name: "bin/busybox", Mode: 0o755, Size: int64(len(program))}))
	_, err = w.Write(program)
	must.NoError(t, err)
	must.NoError(t, w.Close())
	return archive
}

// Podman knows the runtime with its next command.
func TestPodmanKnowsIt(t *testing.T) {
	runtimePath := realEngine(t, "podman", "runc")
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin")
	hideContainersConfig(t)
	dir := t.TempDir()
	rootfs := filepath.Join(dir, "rootfs")
	must.NoError(t, os.MkdirAll(filepath.Join(rootfs, "etc"), 0o755))
	must.NoError(t, os.MkdirAll(filepath.Join(rootfs, "bin"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(rootfs, "bin/busybox"), contents(t, busybox), 0o755))
	podman := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "podman", append([]string{
			"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "runroot"), "--cgroup-manager", "cgroupfs",
			"--storage-driver", "vfs",
		}, args...)...)
	}
	hello := []string{"run", "--rm", "--network", "none", "--rootfs", rootfs, "/bin/busybox", "echo", "hello"}

	entry := carryOut(t, install.Podman{}.Install, install.Options{RuntimePath: runtimePath}, install.Entry{})
	out, err := podman(append([]string{"--runtime", "tranche"}, hello...)...).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	must.StrContains(t, string(out), "hello\n")
	id := strings.TrimSpace(output(t, "podman", podman("--runtime", "tranche", "run", "--detach", "--network", "none", "--rootfs", rootfs,
		"/bin/busybox", "sleep", "infinity").Args[1:]...))
	running, err := install.RuntimeContainers()
	must.NoError(t, err)
	must.SliceContains(t, running, id)
	must.NoError(t, podman("rm", "--force", id).Run())
	entry = carryOut(t, install.Podman{}.Install, install.Options{RuntimePath: runtimePath, SetDefault: true}, entry)
	out, err = podman("info", "--format", "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}").Output()
	must.NoError(t, err)
	must.Eq(t, "tranche "+runtimePath+"\n", string(out))

	carryOut(t, install.Podman{}.Uninstall, install.Options{}, entry)
	out, err = podman(append([]string{"--runtime", "tranche"}, hello...)...).CombinedOutput()
	must.Error(t, err, must.Sprintf("%s", out))
}

// hideContainersConfig puts a copy over Podman's configuration, so that the machine's own is not changed. The mount goes
// with the sandbox.
func hideContainersConfig(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	output(t, "cp", "-a", "/etc/containers/.", dir)
	must.NoError(t, unix.Mount(dir, "/etc/containers", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount("/etc/containers", unix.MNT_DETACH)) })
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	return text
}
