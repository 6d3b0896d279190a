package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/governor/keeper"
	"github.com/tranche-gpu/tranche/internal/cli/doctor"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// installTrial is a node to install on: all in one directory, but for the engines' own files.
type installTrial struct {
	*trial
	dir, prefix, state, config string
}

func newInstallTrial(t *testing.T) *installTrial {
	t.Helper()
	dir := t.TempDir()
	i := &installTrial{
		trial: newTrial(t), dir: dir, prefix: filepath.Join(dir, "usr"), state: filepath.Join(dir, "state"),
		config: filepath.Join(dir, "etc/daemon.json"),
	}
	i.app = testApp(nvmltest.New())
	i.configFile = filepath.Join(dir, "etc/tranche/config.toml")
	return i
}

// build makes a build folder, whose programs are scripts and whose libraries are real shadows.
func (i *installTrial) build(t *testing.T, text string) string {
	t.Helper()
	build := filepath.Join(i.dir, "build")
	for _, name := range []string{"tranche", "tranche-runtime", "tranche-hook", "nomad-device-tranche", "nomad-driver-tranche"} {
		file := filepath.Join(build, "bin", name)
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n# "+text+"\n"), 0o755))
	}
	for _, library := range shadow.Files() {
		content, err := os.ReadFile(filepath.Join(i.shadowDir, library))
		must.NoError(t, err)
		file := filepath.Join(build, "lib", library)
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.NoError(t, os.WriteFile(file, content, 0o644))
	}
	return build
}

// TestUninstall_EndsTheGovernor: it outlives the device plugin that has started it.
func TestUninstall_EndsTheGovernor(t *testing.T) {
	i := newInstallTrial(t)
	run := filepath.Join(i.dir, "run")
	i.must(t, "install", "--from", i.build(t, "v1"), "--prefix", i.prefix)
	g := keptGovernor(t, keeper.Options{RunDir: run, StateDir: i.state, DriverRoot: i.dir})
	i.must(t, "uninstall", "--files", "--dry-run", "--run-dir", run)
	must.True(t, g.Lives())
	must.StrContains(t, i.must(t, "uninstall", "--files", "--run-dir", run), fmt.Sprintf("ended the governor, process %d\n", g.PID))
	must.False(t, g.MayLive())
}

// keptGovernor starts a governor as the device plugin does.
func keptGovernor(t *testing.T, o keeper.Options) *keeper.Governor {
	t.Helper()
	buildDir := os.Getenv("TRANCHE_BUILD")
	needs.That(t, buildDir != "", "TRANCHE_BUILD, for the governor")
	ctx, cancel := context.WithCancel(t.Context())
	runs := make(chan struct{}, 1)
	var k *keeper.Keeper
	o.Program, o.Logger = filepath.Join(buildDir, "bin/tranche"), hclog.NewNullLogger()
	o.Changed = func() {
		if k.Problem() == "" {
			runs <- struct{}{}
		}
	}
	k = keeper.New(o)
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	<-runs
	cancel()
	running.Wait()
	g, err := keeper.Find(o.RunDir, "tranche")
	must.NoError(t, err)
	must.NotNil(t, g)
	t.Cleanup(func() { _ = g.Signal(syscall.SIGKILL) })
	return g
}

func (i *installTrial) do(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	i.stdout, i.stderr = &out, &errs
	code = i.main(append(args, "--state-dir", i.state))
	return code, out.String(), errs.String()
}

func (i *installTrial) must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := i.do(args...)
	must.Zero(t, code, must.Sprintf("%v: %s", args, stderr))
	return stdout
}

func (i *installTrial) refused(t *testing.T, says string, args ...string) {
	t.Helper()
	code, _, stderr := i.do(args...)
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, says)
}

// files lists what is below the directory, but for the build folder.
func (i *installTrial) files(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("find", i.dir, "-path", i.dir+"/build", "-prune", "-o", "-type", "f",
		"-not", "-name", "*.before-tranche-*", "-printf", "%P\n").Output()
	must.NoError(t, err)
	return strings.Fields(string(out))
}

func TestInstallFromABuildFolder(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	build := i.build(t, "first")
	args := []string{"install", "docker", "--from", build, "--prefix", i.prefix, "--config", i.config}

	code, stdout, stderr := i.do(append(args, "--dry-run")...)
	must.Zero(t, code)
	must.StrContains(t, stdout, "+++ "+i.config)
	must.StrContains(t, stdout, filepath.Join(i.prefix, "bin/tranche-hook")+": ")
	must.StrContains(t, stderr, "Nothing was changed (--dry-run)")
	must.SliceEmpty(t, i.files(t))

	proctest.Named(t, nil, "dockerd")
	must.StrContains(t, i.must(t, args...), "until you run: systemctl reload docker (containers go on running)")
	must.SliceContainsAll(t, i.files(t), []string{
		"usr/bin/tranche", "usr/bin/tranche-runtime", "usr/bin/tranche-hook", "usr/lib/tranche/libcuda.so.1",
		"usr/lib/tranche/libnvidia-ml.so.1", "usr/lib/tranche/governed/libcuda.so.1", "usr/lib/tranche/compute/libcuda.so.1", "etc/daemon.json", "etc/tranche/config.toml",
		"state/installed.json",
	})
	must.FileContains(t, i.config, filepath.Join(i.prefix, "bin/tranche-runtime"))
	must.FileContains(t, i.configFile, `hook_path  = "`+filepath.Join(i.prefix, "bin/tranche-hook")+`"`)
	must.StrContains(t, i.must(t, args...), "Nothing to change.")

	// An operator's configuration stays, in an update and when all else goes.
	must.NoError(t, os.WriteFile(i.configFile, []byte("runtime = \"crun\"\n"), 0o644))
	i.build(t, "second")
	i.must(t, args...)
	must.FileContains(t, filepath.Join(i.prefix, "bin/tranche-hook"), "second")
	must.FileContains(t, i.configFile, "crun")

	podman := filepath.Join(i.dir, "etc/containers.conf")
	i.must(t, "install", "podman", "--runtime-path", filepath.Join(i.prefix, "bin/tranche-runtime"), "--config", podman)
	i.refused(t, "is configured to use the programs", "uninstall", "--files")
	i.refused(t, "podman "+podman+" is configured to use the programs", "uninstall", "docker", "--files", "--config", i.config)
	must.FileExists(t, i.config)
	i.must(t, "uninstall", "podman", "--config", podman)
	hook := filepath.Join(i.prefix, "bin/tranche-hook")
	must.StrContains(t, i.must(t, "uninstall", "docker", "--files", "--config", i.config, "--dry-run"), hook+": removed\n")
	i.must(t, "uninstall", "docker", "--files", "--config", i.config)
	must.Eq(t, []string{"etc/tranche/config.toml"}, i.files(t))
	must.DirNotExists(t, filepath.Join(i.prefix, "lib/tranche"))
}

// An installation that is killed while it copies leaves nothing that an uninstallation does not find, and one that fails nothing.
func TestInstall_RecordedBefore(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	args := []string{"install", "--from", i.build(t, "first"), "--prefix", i.prefix, "--state-dir", i.state}
	hook, record := filepath.Join(i.prefix, "bin/tranche-hook"), filepath.Join(i.state, "installed.json")
	said := 0
	i.stdout = writerFunc(func(text []byte) (int, error) {
		if said++; said == 1 {
			must.FileContains(t, record, hook)
			return len(text), nil
		}
		return 0, errors.New("nobody reads this")
	})
	i.stderr = io.Discard
	must.Eq(t, exitFailure, i.main(args))
	must.Eq(t, 2, said)
	must.SliceEmpty(t, i.files(t))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

func TestInstallNomadsPlugins(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	agent := filepath.Join(i.dir, "nomad.d")
	plugins := filepath.Join(i.dir, "plugins")
	must.NoError(t, os.MkdirAll(agent, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(agent, "nomad.hcl"), []byte("plugin_dir = \""+plugins+"\"\n"), 0o644))
	code, _, stderr := i.do("install", "nomad", "--from", i.build(t, "x"), "--prefix", i.prefix, "--config", agent)
	must.Zero(t, code)
	must.StrNotContains(t, stderr, "plugin directory") // has them now
	must.SliceContainsSubset(t, i.files(t), []string{"plugins/nomad-device-tranche", "plugins/nomad-driver-tranche"})
	i.must(t, "uninstall", "nomad", "--files", "--config", agent)
	must.Eq(t, []string{"nomad.d/nomad.hcl"}, i.files(t))
}

// A package's plugins are linked, also in place of copies, and all of it goes at once.
func TestInstall_LinksThePluginsOfAPackage(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	agent := filepath.Join(i.dir, "nomad.d")
	plugins := filepath.Join(i.dir, "plugins")
	must.NoError(t, os.MkdirAll(agent, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(agent, "nomad.hcl"), []byte("plugin_dir = \""+plugins+"\"\n"), 0o644))
	build := i.build(t, "copied")
	i.must(t, "install", "nomad", "--from", build, "--prefix", i.prefix, "--config", agent)

	packaged := filepath.Join(i.prefix, "lib/tranche/plugins")
	must.NoError(t, os.MkdirAll(packaged, 0o755))
	for _, name := range []string{"nomad-device-tranche", "nomad-driver-tranche"} {
		must.NoError(t, os.WriteFile(filepath.Join(packaged, name), []byte("#!/bin/sh\n# packaged\n"), 0o755))
	}
	i.refused(t, "upgrade the package instead", "install", "nomad", "--from", build, "--prefix", i.prefix, "--config", agent)
	i.must(t, "install", "nomad", "--prefix", i.prefix, "--config", agent, "--dry-run")
	copied, err := os.ReadFile(filepath.Join(plugins, "nomad-device-tranche"))
	must.NoError(t, err)
	must.StrContains(t, string(copied), "copied")
	out := i.must(t, "install", "nomad", "--prefix", i.prefix, "--config", agent)
	must.StrContains(t, out, "linked "+filepath.Join(plugins, "nomad-device-tranche")+" to "+filepath.Join(packaged, "nomad-device-tranche"))
	linked, err := os.ReadFile(filepath.Join(plugins, "nomad-driver-tranche"))
	must.NoError(t, err)
	must.StrContains(t, string(linked), "packaged")
	must.StrContains(t, i.must(t, "install", "nomad", "--prefix", i.prefix, "--config", agent), "Nothing to change.")

	i.refused(t, "--all is for all engines", "uninstall", "nomad", "--all")
	i.must(t, "uninstall", "--all", "--run-dir", filepath.Join(i.dir, "run"))
	left := []string{"nomad.d/nomad.hcl", "usr/bin/tranche", "usr/bin/tranche-runtime", "usr/bin/tranche-hook"} // the package's
	for _, library := range append(shadow.Files(), "plugins/nomad-device-tranche", "plugins/nomad-driver-tranche") {
		left = append(left, "usr/lib/tranche/"+library)
	}
	must.SliceContainsAll(t, left, i.files(t))
}

// Nomad was removed before, with its configuration: that is no reason to stay.
func TestUninstall_AllWithoutNomad(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	agent := filepath.Join(i.dir, "nomad.d")
	must.NoError(t, os.MkdirAll(agent, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(agent, "nomad.hcl"), []byte("plugin_dir = \""+i.dir+"/plugins\"\n"), 0o644))
	i.must(t, "install", "nomad", "--from", i.build(t, "x"), "--prefix", i.prefix, "--config", agent)
	must.NoError(t, os.RemoveAll(agent))
	i.must(t, "uninstall", "--all", "--run-dir", filepath.Join(i.dir, "run"))
	must.SliceEmpty(t, i.files(t))
}

// The programs stay while a container needs its hook.
func TestUninstallFilesRefusesWhileAContainerRuns(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	i.must(t, "install", "--from", i.build(t, "x"), "--prefix", i.prefix)
	run := filepath.Join(i.dir, "run")
	ledger, err := claim.Open(claim.Options{StateDir: i.state, RunDir: run})
	must.NoError(t, err)
	c, _, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: "GPU-1"}, Slices: []string{"GPU-1/slice-0"}, LimitBytes: 1 << 30, Owner: claim.OwnerExternal,
	})
	must.NoError(t, err)
	must.NoError(t, ledger.Bind(t.Context(), c.ID, claim.Container{ID: "web", Runtime: "runc", InitPID: os.Getpid()}))
	i.refused(t, "container web runs with claim "+c.ID, "uninstall", "--files", "--run-dir", run)
	must.FileExists(t, filepath.Join(i.prefix, "bin/tranche-hook"))
	i.must(t, "uninstall", "--files", "--run-dir", run, "--force")
	must.FileNotExists(t, filepath.Join(i.prefix, "bin/tranche-hook"))
}

// A task without a GPU has no claim, and needs the task driver all the same.
func TestUninstall_RefusesWhileATaskRuns(t *testing.T) {
	i := newInstallTrial(t)
	needs.Sandbox(t, "to see no other processes")
	agent := filepath.Join(i.dir, "nomad.d")
	must.NoError(t, os.MkdirAll(agent, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(agent, "nomad.hcl"), []byte("plugin_dir = \""+i.dir+"/plugins\"\n"), 0o644))
	podman := filepath.Join(i.dir, "containers.conf")
	runtime := filepath.Join(i.prefix, "bin/tranche-runtime")
	i.must(t, "install", "nomad", "--from", i.build(t, "x"), "--prefix", i.prefix, "--config", agent)
	i.must(t, "install", "podman", "--runtime-path", runtime, "--config", podman)
	const id = "2a5c1b9e-0f43-7d6a-8b1c-9d0e1f2a3b4c-serve-0badcafe"
	proctest.Named(t, nil, "containerd-shim-runc-v2", "-namespace", "nomad", "-id", id)
	before := i.files(t)
	for _, args := range [][]string{{"nomad", "--config", agent}, {"--all"}, {"podman", "--files", "--config", podman}} {
		i.refused(t, "tasks of Nomad run and need nomad-driver-tranche: container "+id+"; stop them first", append([]string{"uninstall"}, args...)...)
		must.Eq(t, before, i.files(t))
	}
	i.must(t, "uninstall", "podman", "--config", podman)
	i.must(t, "uninstall", "--all", "--force", "--run-dir", filepath.Join(i.dir, "run"))
	must.FileNotExists(t, filepath.Join(agent, "tranche.hcl"))
}

// A container without a GPU has no claim, and its engine calls the runtime to end it.
func TestUninstall_RefusesWhileTheRuntimeIsNeeded(t *testing.T) {
	i := newInstallTrial(t)
	needs.Sandbox(t, "to see no other processes")
	i.must(t, "install", "--from", i.build(t, "x"), "--prefix", i.prefix)
	stop := proctest.Named(t, nil, "/usr/bin/conmon", "-c", "web", "-r", filepath.Join(i.prefix, "bin/tranche-runtime"))
	i.refused(t, "engines need tranche-runtime to end what runs with it: container web", "uninstall", "--files")
	must.FileExists(t, filepath.Join(i.prefix, "bin/tranche-runtime"))
	stop()
	proctest.Named(t, nil, "/usr/bin/conmon", "-c", "web", "-r", "/usr/bin/crun")
	i.must(t, "uninstall", "--files")
}

func TestUninstallKeepsChangedFiles(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	i.must(t, "install", "--from", i.build(t, "x"), "--prefix", i.prefix)
	hook := filepath.Join(i.prefix, "bin/tranche-hook")
	must.NoError(t, os.WriteFile(hook, []byte("mine"), 0o755))
	code, _, stderr := i.do("uninstall", "--files")
	must.Zero(t, code)
	must.StrContains(t, stderr, hook+" was changed since it was installed, and stays")
	must.FileContains(t, hook, "mine")
}

func TestInstallErrors(t *testing.T) {
	i := newInstallTrial(t)
	build := i.build(t, "x")
	must.NoError(t, os.Remove(filepath.Join(build, "bin/tranche-hook")))
	notShadow := filepath.Join(i.dir, "other")
	must.NoError(t, exec.Command("cp", "-a", i.build(t, "x"), notShadow).Run())
	must.NoError(t, os.WriteFile(filepath.Join(notShadow, "lib/libcuda.so.1"), []byte("x"), 0o644))
	must.NoError(t, os.Remove(filepath.Join(build, "bin/tranche-hook")))
	for says, args := range map[string][]string{
		"nothing to install: name an engine":          {"install"},
		"nothing to uninstall: name an engine":        {"uninstall"},
		`invalid argument "lxc"`:                      {"install", "lxc"},
		"find tranche-runtime: stat /nowhere/runtime": {"install", "docker", "--runtime-path", "/nowhere/runtime"},
		`"runtime" has to be an absolute path`:        {"install", "docker", "--runtime-path", "runtime"},
		`--prefix: "rel" has to be an absolute path`:  {"install", "docker", "--prefix", "rel"},
		"is no program":                               {"install", "docker", "--runtime-path", i.dir},
		"--config names the file of one engine":       {"install", "docker", "podman", "--config", "x"},
		"it has to be a build folder":                 {"install", "--from", build, "--prefix", i.prefix},
		"no shadow library":                           {"install", "--from", notShadow, "--prefix", i.prefix},
	} {
		i.refused(t, says, args...)
	}
	must.SliceNotContains(t, i.files(t), "state/installed.json")
	i.state = "rel" // where nobody else would find the record
	i.refused(t, `--state-dir: "rel" has to be an absolute path`, "install", "docker", "--runtime-path", "/bin/true")
	i.refused(t, `--state-dir: "rel" has to be an absolute path`, "uninstall", "--all")
}

// --restart runs what the operator would be told to run; what that says is not lost.
func TestInstallRestart(t *testing.T) {
	i := newInstallTrial(t)
	needs.Sandbox(t, "to see no other processes")
	bin := t.TempDir()
	log := filepath.Join(bin, "log")
	script := "#!/bin/sh\necho \"$@\" >>" + log + "\n[ \"$2\" != containerd ] || { echo Unit not found; exit 5; }\n"
	must.NoError(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte(script), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	runtime := filepath.Join(i.build(t, "x"), "bin/tranche-runtime")
	args := []string{"install", "docker", "--runtime-path", runtime, "--config", i.config, "--restart"}
	must.StrContains(t, i.must(t, args...), "docker is not running, and reads its configuration when it starts")
	must.FileNotExists(t, log)
	must.NoError(t, os.Remove(i.config))
	for _, daemon := range []string{"dockerd", "containerd"} {
		proctest.Named(t, nil, daemon)
	}
	must.StrContains(t, i.must(t, args...), "ran: systemctl reload docker")
	i.must(t, args...) // changes nothing, so there is nothing to reload
	must.FileContains(t, log, "reload docker\n")
	content, err := os.ReadFile(log)
	must.NoError(t, err)
	must.Eq(t, 1, strings.Count(string(content), "\n"))

	toml := filepath.Join(i.dir, "etc/config.toml")
	i.refused(t, "Unit not found", "install", "containerd", "--runtime-path", runtime, "--config", toml, "--restart")
	must.FileContains(t, toml, runtime)
}

// A restart of Docker stops containers, so it takes more than --restart where some run.
func TestUninstallRestart_StopsContainers(t *testing.T) {
	i := newInstallTrial(t)
	needs.Sandbox(t, "to see no other processes")
	bin := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	runtime := filepath.Join(i.build(t, "x"), "bin/tranche-runtime")
	i.must(t, "install", "docker", "--runtime-path", runtime, "--config", i.config)
	proctest.Named(t, nil, "dockerd")
	stop := proctest.Named(t, nil, "containerd-shim-runc-v2", "-namespace", "moby", "-id", strings.Repeat("0123456789abcdef", 4))
	args := []string{"uninstall", "docker", "--config", i.config}
	i.refused(t, "systemctl restart docker would stop container 0123456789ab: stop them first", append(args, "--restart")...)
	must.FileExists(t, i.config)
	must.StrContains(t, i.must(t, append(args, "--restart", "--force")...), "ran: systemctl restart docker")
	must.FileNotExists(t, i.config)

	i.must(t, "install", "docker", "--runtime-path", runtime, "--config", i.config)
	must.StrContains(t, i.must(t, args...), "until you run: systemctl restart docker (containers stop, unless live-restore is on)")
	i.must(t, "install", "docker", "--runtime-path", runtime, "--config", i.config)
	stop()
	must.StrContains(t, i.must(t, append(args, "--restart")...), "ran: systemctl restart docker")
}

// Nomad is restarted for a plugin that was replaced under it, and for nothing else.
func TestInstallRestart_OldPlugins(t *testing.T) {
	i := newInstallTrial(t)
	needs.Root(t, "to install files that belong to root")
	bin := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	agent, plugins := filepath.Join(i.dir, "nomad.d"), filepath.Join(i.dir, "plugins")
	must.NoError(t, os.MkdirAll(agent, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(agent, "nomad.hcl"), []byte("plugin_dir = \""+plugins+"\"\n"), 0o644))
	args := []string{"install", "nomad", "--from", i.build(t, "x"), "--prefix", i.prefix, "--config", agent}
	i.must(t, args...)

	proctest.Named(t, nil, "nomad", "agent", "-config", agent)
	stop := proctest.Named(t, nil, filepath.Join(plugins, "nomad-device-tranche")) // and not what lies there
	must.StrContains(t, i.must(t, args...), "nomad runs the old nomad-device-tranche until you run: systemctl restart nomad")
	must.StrContains(t, i.must(t, append(args, "--restart")...), "ran: systemctl restart nomad")
	stop()
	must.Eq(t, "Nothing to change.\n", i.must(t, append(args, "--restart")...))
}

// Two at once would overwrite each other's record.
func TestInstallOneAtATime(t *testing.T) {
	i := newInstallTrial(t)
	must.NoError(t, os.MkdirAll(i.state, 0o700))
	holder := exec.Command("flock", i.state, "cat")
	stdin, err := holder.StdinPipe()
	must.NoError(t, err)
	stdout, err := holder.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, holder.Start())
	_, err = stdin.Write([]byte("x"))
	must.NoError(t, err)
	_, err = stdout.Read(make([]byte, 1)) // cat runs, so the lock is held
	must.NoError(t, err)
	runtime := filepath.Join(i.build(t, "x"), "bin/tranche-runtime")
	i.refused(t, "another `tranche install`", "install", "docker", "--runtime-path", runtime, "--config", i.config)
	must.FileNotExists(t, i.config)
	must.NoError(t, stdin.Close())
	must.NoError(t, holder.Wait())
}

// Containers with a GPU would not start with such a file, or the agent would not.
func TestInstall_WrongConfiguration(t *testing.T) {
	i := newInstallTrial(t)
	runtime := filepath.Join(i.build(t, "x"), "bin/tranche-runtime")
	must.NoError(t, os.MkdirAll(filepath.Dir(i.configFile), 0o755))
	args := []string{"install", "docker", "--runtime-path", runtime, "--config", i.config}
	for mistake, says := range map[string]string{
		"[idel]\npolicy = \"off\"\n":             "no setting called idel",
		"[idle]\npolice = \"off\"\n":             "no setting idle.police",
		"[usage]\nkeep = 1\n":                    "no setting usage.keep",
		"runtimes = \"runc\"\n[usage]\nkeep = 1": "runtimes has a value of the wrong type",
	} {
		must.NoError(t, os.WriteFile(i.configFile, []byte(mistake), 0o644))
		i.refused(t, says, args...)
		i.refused(t, "correct the file first, nothing was changed", args...)
		must.FileNotExists(t, i.config)
	}
	must.NoError(t, os.WriteFile(i.configFile, []byte("[idle]\npolicy = \"off\"\n"), 0o644))
	i.must(t, args...)
}

// The record says what to take back, so one that cannot be read is no reason to guess.
func TestInstallWithABrokenRecord(t *testing.T) {
	i := newInstallTrial(t)
	must.NoError(t, os.MkdirAll(i.state, 0o700))
	record := filepath.Join(i.state, "installed.json")
	must.NoError(t, os.WriteFile(record, []byte("{"), 0o644))
	runtime := filepath.Join(i.build(t, "x"), "bin/tranche-runtime")
	i.refused(t, "read what was installed before, "+record, "install", "docker", "--runtime-path", runtime, "--config", i.config)
	must.FileNotExists(t, i.config)
	must.NoError(t, os.Remove(record))
	i.must(t, "install", "docker", "--runtime-path", runtime, "--config", i.config)
	var read struct{ Engines map[string]any }
	content, err := os.ReadFile(record)
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(content, &read))
	must.MapContainsKey(t, read.Engines, "docker "+i.config)
}

// What was installed below another prefix is found there by doctor, and taken back from there.
func TestInstall_AnotherPrefix(t *testing.T) {
	needs.Root(t, "to install files that belong to root")
	i := newInstallTrial(t)
	must.NoError(t, os.MkdirAll(filepath.Dir(i.configFile), 0o755))
	must.NoError(t, os.WriteFile(i.configFile, []byte("state_dir = \""+i.state+"\"\n"), 0o644))
	agent := filepath.Join(i.dir, "nomad.d")
	must.NoError(t, os.MkdirAll(agent, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(agent, "client.hcl"), []byte("data_dir = \""+i.dir+"/data\"\n"), 0o644))
	i.must(t, "install", "nomad", "--from", i.build(t, "x"), "--prefix", i.prefix, "--config", agent)

	var out bytes.Buffer
	i.stdout = &out
	i.main([]string{"doctor", "--json", "--config", i.configFile})
	var results []doctor.Result
	must.NoError(t, json.Unmarshal(out.Bytes(), &results), must.Sprint(out.String()))
	found := slices.IndexFunc(results, func(r doctor.Result) bool { return r.Check == "tranche-runtime" })
	must.Eq(t, filepath.Join(i.prefix, "bin/tranche-runtime"), results[found].Looked)
	must.Eq(t, doctor.OK, results[found].State)

	i.refused(t, "/usr/bin/tranche-runtime, not below /opt; nothing was changed: leave out --prefix", "uninstall", "nomad", "--config", agent, "--files", "--prefix", "/opt")
	i.must(t, "uninstall", "nomad", "--config", agent, "--files", "--prefix", i.prefix)
	must.FileNotExists(t, filepath.Join(i.prefix, "bin/tranche-runtime"))
}
