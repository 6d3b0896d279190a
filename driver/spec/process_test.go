package spec

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
)

func TestWithUlimits(t *testing.T) {
	s := &Spec{Process: &specs.Process{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 1024}}}}
	must.NoError(t, withUlimits(&TaskConfig{})(t.Context(), nil, nil, s))
	must.SliceEmpty(t, s.Process.Rlimits) // containerd's own, not the 1024 of its default spec

	s = apply(t, withUlimits(&TaskConfig{Ulimit: Pairs{{"nofile": "1024:4096"}, {"core": "0", "memlock": "-1"}}}))
	must.Eq(t, []specs.POSIXRlimit{
		{Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_MEMLOCK", Soft: math.MaxUint64, Hard: math.MaxUint64},
		{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 4096},
	}, s.Process.Rlimits)
}

func TestWithSysctls(t *testing.T) {
	asked := &TaskConfig{Sysctl: Pairs{{"kernel.msgmax": "1"}, {"net.core.somaxconn": "2"}}}
	sysctls := apply(t, withSysctls(asked, &network.Network{Mode: network.None}, true)).Linux.Sysctl
	must.Eq(t, "1", sysctls["kernel.msgmax"])
	must.Eq(t, "2", sysctls["net.core.somaxconn"])
	must.Eq(t, "0", sysctls[unprivilegedPorts])

	asked.Sysctl = append(asked.Sysctl, map[string]string{unprivilegedPorts: "1024"})
	must.Eq(t, "1024", apply(t, withSysctls(asked, &network.Network{Mode: network.Bridge}, false)).Linux.Sysctl[unprivilegedPorts])

	_, err := tryApply(withSysctls(asked, &network.Network{Mode: network.Host}, false))
	must.ErrorContains(t, err, `option sysctl: "net.core.somaxconn" = "2": the task uses the node's network`)
	_, err = tryApply(withSysctls(asked, &network.Network{Mode: network.Bridge}, true))
	must.ErrorContains(t, err, "userns_mode")
	must.Nil(t, apply(t, withSysctls(&TaskConfig{}, &network.Network{Mode: network.Bridge}, true)).Linux.Sysctl)
	must.Nil(t, apply(t, withSysctls(&TaskConfig{}, &network.Network{Mode: network.Host}, false)).Linux.Sysctl)
}

func TestWithOOMScoreAdj(t *testing.T) {
	plugin := &Config{OOMScoreAdj: 300}
	must.Eq(t, 500, *apply(t, withOOMScoreAdj(&TaskConfig{OOMScoreAdj: 500}, plugin)).Process.OOMScoreAdj)
	must.Eq(t, 300, *apply(t, withOOMScoreAdj(&TaskConfig{}, plugin)).Process.OOMScoreAdj)
	must.Eq(t, 0, *apply(t, withOOMScoreAdj(&TaskConfig{}, &Config{})).Process.OOMScoreAdj)
}

func TestWithPidsLimit(t *testing.T) {
	cases := []struct{ task, plugin, want int64 }{{0, 0, 0}, {0, 50, 50}, {20, 50, 20}, {20, 0, 20}, {-1, 0, 0}}
	for _, c := range cases {
		s := apply(t, withPidsLimit(&TaskConfig{PidsLimit: c.task}, &Config{PidsLimit: c.plugin}))
		if c.want == 0 {
			must.Nil(t, s.Linux.Resources)
			continue
		}
		must.Eq(t, c.want, *s.Linux.Resources.Pids.Limit)
	}
}

func TestWithTTY(t *testing.T) {
	s := apply(t, withTTY(true))
	must.True(t, s.Process.Terminal)
	must.Eq(t, []string{"TERM=xterm"}, s.Process.Env)
	must.Eq(t, []string{"TERM=dumb"}, AddTerm([]string{"TERM=dumb"}))
	must.False(t, apply(t, withTTY(false)).Process.Terminal)
}

func TestWithReadonlyRootfs(t *testing.T) {
	must.True(t, apply(t, withReadonlyRootfs(true)).Root.Readonly)
	must.False(t, apply(t, withReadonlyRootfs(false)).Root.Readonly)
}

func TestWithInit(t *testing.T) {
	args := func(s *Spec) error { s.Process.Args = []string{"/app", "-x"}; return nil }
	s := apply(t, specOption(args), withInit("/usr/bin/tini-static"))
	must.Eq(t, []string{initInContainer, "--", "/app", "-x"}, s.Process.Args)
	must.Eq(t, []specs.Mount{{Type: "bind", Source: "/usr/bin/tini-static", Destination: initInContainer,
		Options: []string{"rbind", "rprivate", "ro"}}}, s.Mounts)
	s = apply(t, specOption(args), withInit(""))
	must.Eq(t, []string{"/app", "-x"}, s.Process.Args)
	must.SliceEmpty(t, s.Mounts)
}

func TestInitProgram(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	must.NoError(t, err)
	dir := t.TempDir()
	must.NoError(t, os.Symlink("/bin/sh", filepath.Join(dir, "tini"))) // linked against shared libraries
	must.NoError(t, os.WriteFile(filepath.Join(dir, "docker-init"), []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", dir)
	dirs := initDirs
	t.Cleanup(func() { initDirs = dirs })
	initDirs = []string{filepath.Join(dir, "none")}
	task := &TaskConfig{Init: true}

	_, err = task.InitProgram(&Config{})
	for _, want := range []string{"option init = true", "tini-static, docker-init, catatonit, tini", "init_path",
		"docker-init is not a program", "tini is linked against shared libraries"} {
		must.ErrorContains(t, err, want)
	}

	must.NoError(t, os.Symlink(busybox, filepath.Join(dir, "catatonit")))
	found, err := task.InitProgram(&Config{})
	must.NoError(t, err)
	must.Eq(t, filepath.Join(dir, "catatonit"), found)

	found, err = task.InitProgram(&Config{InitPath: busybox})
	must.NoError(t, err)
	must.Eq(t, busybox, found)
	found, err = (&TaskConfig{}).InitProgram(&Config{InitPath: busybox})
	must.NoError(t, err)
	must.Eq(t, "", found)
}

func TestConfig_CheckProcess(t *testing.T) {
	cases := []struct {
		name   string
		config Config
		want   string
	}{
		{"a runtime with a slash", Config{Runtime: "bin/runc"}, `plugin option runtime = "bin/runc": this is no name of a ` +
			`runtime; it may be the name of an OCI runtime on PATH ("runc", "crun")`},
		{"an allowed runtime that is none", Config{Runtime: "runc", AllowRuntimes: []string{"crun", "io..v2"}},
			`plugin option allow_runtimes: "io..v2"`},
		{"an init that is not there", Config{Runtime: "runc", InitPath: "/no/init"}, `plugin option init_path = "/no/init"`},
		{"an init with libraries", Config{Runtime: "runc", InitPath: "/bin/sh"}, "/bin/sh is linked against shared libraries"},
		{"an init that is a directory", Config{Runtime: "runc", InitPath: "/etc"}, "/etc is not an executable file"},
		{"fewer than no processes", Config{Runtime: "runc", PidsLimit: -1}, "plugin option pids_limit = -1"},
		{"a protected task", Config{Runtime: "runc", OOMScoreAdj: -500},
			"plugin option oom_score_adj = -500: must be from 0 to 1000"},
		{"a label that nothing has", Config{Runtime: "runc", ExtraLabels: []string{"job_*", "jobname"}},
			`plugin option extra_labels: "jobname" matches none of alloc_id, job_id`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { must.ErrorContains(t, c.config.checkProcess(), c.want) })
	}
	must.NoError(t, (&Config{Runtime: "crun", AllowRuntimes: []string{"/opt/youki", "io.containerd.kata.v2"}, PidsLimit: 10,
		OOMScoreAdj: 1000, ExtraLabels: []string{"*_id", "job_name"}}).checkProcess())
}

func TestContainerLabels(t *testing.T) {
	cfg := &drivers.TaskConfig{ID: "id", AllocID: "01234567-89ab", Name: "web", JobName: "shop", NodeName: "n1",
		NodeID: strings.Repeat("long", 2000)}
	options := &TaskConfig{Image: "busybox", Labels: Pairs{{"a": "b", extraLabelPrefix + "job_name": "mine"}}}
	got := ContainerLabels(cfg, options, &Config{ExtraLabels: []string{"job_*", "*alloc_id", "node_*", "task_group_name"}})
	must.Eq(t, "b", got["a"])
	must.Eq(t, "id", got[naming.TaskID])
	for name, want := range map[string]string{"job_name": "shop", "alloc_id": "01234567-89ab", "short_alloc_id": "01234567",
		"node_name": "n1"} {
		must.Eq(t, want, got[extraLabelPrefix+name])
	}
	for _, name := range []string{"task_name", "task_group_name", "job_id", "node_id"} { // not asked for, empty, too long
		must.MapNotContainsKey(t, got, extraLabelPrefix+name)
	}
}

func TestTaskRuntime(t *testing.T) {
	plugin := &Config{Runtime: "runc", AllowRuntimes: []string{"no-such-runtime"}}
	r, err := (&TaskConfig{}).OCIRuntime(plugin)
	must.NoError(t, err)
	must.Eq(t, ociruntime.Runc, r.Shim)
	_, err = (&TaskConfig{Runtime: "no-such-runtime"}).OCIRuntime(plugin)
	must.ErrorContains(t, err, `option runtime = "no-such-runtime": it is not installed on this node`)
	_, err = (&TaskConfig{}).OCIRuntime(&Config{Runtime: "/no/such"})
	must.ErrorContains(t, err, `plugin option runtime = "/no/such": it is not installed on this node`)
	crun, err := (&TaskConfig{}).OCIRuntime(&Config{Runtime: "crun"})
	must.NoError(t, err)
	must.True(t, filepath.IsAbs(crun.Program))
}
