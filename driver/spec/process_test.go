package spec

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/ociruntime"
)

func TestWithArgs(t *testing.T) {
	image := ocispec.ImageConfig{Entrypoint: []string{"/entry", "-e"}, Cmd: []string{"cmd", "-c"}}
	cases := []struct {
		name    string
		options TaskConfig
		image   ocispec.ImageConfig
		want    []string
	}{
		{"the image's own", TaskConfig{}, image, []string{"/entry", "-e", "cmd", "-c"}},
		{"command", TaskConfig{Command: "x"}, image, []string{"/entry", "-e", "x"}},
		{"command and args", TaskConfig{Command: "x", Args: []string{"y"}}, image, []string{"/entry", "-e", "x", "y"}},
		{"args", TaskConfig{Args: []string{"y"}}, image, []string{"/entry", "-e", "y"}},
		{"entrypoint", TaskConfig{Entrypoint: []string{"z"}}, image, []string{"z"}},
		{"everything", TaskConfig{Entrypoint: []string{"z"}, Command: "x", Args: []string{"y"}}, image,
			[]string{"z", "x", "y"}},
		{"no entrypoint", TaskConfig{Entrypoint: []string{""}, Command: "x", Args: []string{"y"}}, image, []string{"x", "y"}},
		{"no entrypoint, and args", TaskConfig{Entrypoint: []string{""}, Args: []string{"x", "y"}}, image, []string{"x", "y"}},
		{"an image with a command only", TaskConfig{}, ocispec.ImageConfig{Cmd: []string{"cmd"}}, []string{"cmd"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			must.Eq(t, c.want, apply(t, withArgs(&c.options, c.image, "app")).Process.Args)
		})
	}
	_, err := tryApply(withArgs(&TaskConfig{}, ocispec.ImageConfig{}, "app"))
	must.ErrorContains(t, err, `image "app" has neither an entrypoint nor a command; set the option command`)
	_, err = tryApply(withArgs(&TaskConfig{Entrypoint: []string{""}}, image, "app"))
	must.ErrorContains(t, err, `option entrypoint = [""]: the image's entrypoint and command are not used; set the option command`)
}

func TestWithEnv_TaskOverImageAndNoClaims(t *testing.T) {
	image := ocispec.ImageConfig{Env: []string{"A=image", "B=image", "PATH=/image", "TRANCHE_CLAIM_00000000=stolen"}}
	cfg := &drivers.TaskConfig{Env: map[string]string{"B": "task", "TRANCHE_CLAIM_11111111": "token"}}
	env := apply(t, withImageEnv(image), withTaskEnv(cfg)).Process.Env
	must.SliceContainsAll(t, env, []string{"PATH=/image", "A=image", "B=task"})
	must.SliceContains(t, apply(t, withImageEnv(ocispec.ImageConfig{})).Process.Env, defaultPath)
}

func TestWithWorkDir(t *testing.T) {
	must.Eq(t, "/task", apply(t, withWorkDir("/task", "/image")).Process.Cwd)
	must.Eq(t, "/image", apply(t, withWorkDir("", "/image")).Process.Cwd)
	must.Eq(t, "/", apply(t, withWorkDir("", "")).Process.Cwd)
}

func TestProcessOptions_BadInput(t *testing.T) {
	long := strings.Repeat("x", 4096)
	cases := []struct {
		name    string
		options string
		want    []string
	}{
		{"group_add of nothing", `group_add = ["audio", ""]`, []string{`option group_add: ""`, "0 to 4294967294"}},
		{"group_add below zero", `group_add = ["-1"]`, []string{`option group_add: "-1"`}},
		{"group_add too high", `group_add = ["4294967295"]`, []string{`option group_add: "4294967295"`}},
		{"group_add beyond numbers", `group_add = ["99999999999999999999"]`,
			[]string{`option group_add: "99999999999999999999"`}},
		{"hostname with a blank", `hostname = "my host"`, []string{`option hostname = "my host"`, "RFC 1123"}},
		{"hostname with a hyphen first", `hostname = "-web"`, []string{`option hostname = "-web"`, "RFC 1123"}},
		{"hostname with an empty part", `hostname = "web..x"`, []string{`option hostname = "web..x"`, "RFC 1123"}},
		{"hostname too long", `hostname = "` + long[:65] + `"`, []string{"option hostname", "up to 64"}},
		{"hostname of the node's", "hostname = \"web\"\nuts_mode = \"host\"", []string{`option hostname = "web"`, "uts_mode"}},
		{"init without a first process", "init = true\npid_mode = \"host\"", []string{"option init = true", "pid_mode"}},
		{"ulimit of an unknown name", `ulimit { files = "10" }`, []string{`option ulimit: files = "10"`, "nofile"}},
		{"ulimit that is no number", `ulimit { nofile = "many" }`, []string{`option ulimit: nofile = "many"`, `"SOFT:HARD"`}},
		{"ulimit upside down", `ulimit { nofile = "20:10" }`, []string{`option ulimit: nofile = "20:10"`}},
		{"ulimit below zero", `ulimit { nofile = "-2:-2" }`, []string{`option ulimit: nofile = "-2:-2"`, "not negative"}},
		{"ulimit of three", `ulimit { nofile = "1:2:3" }`, []string{`option ulimit: nofile = "1:2:3"`}},
		{"sysctl of the node", `sysctl { "vm.swappiness" = "1" }`, []string{`option sysctl: "vm.swappiness" = "1"`, "net.*"}},
		{"sysctl of users", `sysctl { "user.max_user_namespaces" = "1" }`,
			[]string{`"user.max_user_namespaces"`, "whole node's"}},
		{"sysctl that is a path", `sysctl { "net/../kernel" = "1" }`, []string{`option sysctl: "net/../kernel"`, "no name"}},
		{"sysctl of the hostname", `sysctl { "kernel.hostname" = "x" }`, []string{`"kernel.hostname" = "x"`, "option hostname"}},
		{"sysctl without a value", `sysctl { "net.core.somaxconn" = "" }`, []string{`"net.core.somaxconn" = ""`, "empty"}},
		{"sysctl of the node's network", "network_mode = \"host\"\nsysctl { \"net.core.somaxconn\" = \"1\" }",
			[]string{`"net.core.somaxconn" = "1"`, "the node's network"}},
		{"sysctl of the node's IPC", "ipc_mode = \"host\"\nsysctl { \"kernel.shmmax\" = \"1\" }",
			[]string{`"kernel.shmmax" = "1"`, "ipc_mode"}},
		{"sysctl of the node's names", "uts_mode = \"host\"\nsysctl { \"kernel.domainname\" = \"x\" }",
			[]string{`"kernel.domainname" = "x"`, "uts_mode"}},
		{"oom_score_adj below zero", "oom_score_adj = -1", []string{"option oom_score_adj = -1: must be from 0 to 1000"}},
		{"oom_score_adj too high", "oom_score_adj = 1001", []string{"option oom_score_adj = 1001: must be from 0 to 1000"}},
		{"a label of ours", `labels { "dev.tranche.nomad/driver" = "x" }`, []string{`option labels: "dev.tranche.nomad/driver"`}},
		{"a label of containerd", `labels { "containerd.io/restart.status" = "running" }`,
			[]string{`option labels: "containerd.io/restart.status"`, "use another"}},
		{"a label that is too long", `labels { a = "` + long + `" }`, []string{"option labels", "4096"}},
		{"a label without a name", `labels { "" = "x" }`, []string{"option labels: a key is empty"}},
		{"an annotation that joins shims", `annotations { "io.kubernetes.cri.sandbox-id" = "x" }`,
			[]string{`option annotations: "io.kubernetes.cri.sandbox-id"`}},
		{"an annotation for crun", `annotations { "run.oci.hooks.stdout" = "/etc/x" }`,
			[]string{`option annotations: "run.oci.hooks.stdout"`}},
		{"an annotation that adds devices", `annotations { "cdi.k8s.io/x" = "vendor.com/gpu=0" }`,
			[]string{`option annotations: "cdi.k8s.io/x"`}},
		{"cpu_cfs_period too short", "cpu_cfs_period = 999",
			[]string{"option cpu_cfs_period = 999: must be from 1000 to 1000000"}},
		{"cpu_cfs_period too long", "cpu_cfs_period = 1000001", []string{"option cpu_cfs_period = 1000001"}},
		{"memory_swap without a unit", `memory_swap = "512"`, []string{"option memory_swap", `"512"`, `"-1"`}},
		{"memory_swappiness below zero", "memory_swappiness = -1", []string{"option memory_swappiness = -1: must be from 0"}},
		{"memory_swappiness too high", "memory_swappiness = 101", []string{"option memory_swappiness = 101", "to 100"}},
		{"pids_limit below any", "pids_limit = -2", []string{"option pids_limit = -2", "-1 for any number"}},
		{"pids_limit above the node's", "pids_limit = 101", []string{"option pids_limit = 101: this node allows at most 100"}},
		{"pids_limit of any number", "pids_limit = -1", []string{"option pids_limit = -1: this node allows at most 100"}},
		{"shm_size of nothing", `shm_size = "0"`, []string{`option shm_size = "0"`, "greater than zero"}},
		{"shm_size with a foreign unit", `shm_size = "64m"`, []string{`option shm_size = "64m"`, `"256MiB"`}},
		{"shm_size below zero", `shm_size = -5`, []string{`option shm_size = "-5"`}},
		{"shm_size of the node's", "shm_size = \"64MiB\"\nipc_mode = \"host\"", []string{`option shm_size = "64MiB"`, "ipc_mode"}},
		{"a runtime that is not allowed", `runtime = "crun"`,
			[]string{`option runtime = "crun": this node allows`, "allow_runtimes"}},
		{"a runtime that is none", `runtime = "../crun"`, []string{`option runtime = "../crun"`, "absolute path"}},
	}
	plugin := &Config{Runtime: ociruntime.Runc, PidsLimit: 100, AllowPrivileged: true,
		AllowHostNamespaces: []string{"pid", "ipc", "uts"}}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := readTask(t, plugin, c.options)
			must.Error(t, err)
			for _, want := range c.want {
				must.ErrorContains(t, err, want)
			}
			must.Less(t, 1000, len(err.Error())) // a value of any length is not repeated at length
			must.StrNotContains(t, err.Error(), "\n", must.Sprint("there is more than one error for one wrong value"))
		})
	}
}

// What the schema can see is an error when the job is submitted.
func TestProcessOptions_WrongTypes(t *testing.T) {
	for option, value := range map[string]string{
		"group_add": `"audio"`, "hostname": `["a"]`, "init": `"perhaps"`, "ulimit": `"nofile=1"`, "sysctl": `["a"]`,
		"oom_score_adj": `"high"`, "readonly_rootfs": `"mostly"`, "tty": `[true]`, "interactive": `3`, "labels": `"a=b"`,
		"annotations": `7`, "cpu_hard_limit": `"a bit"`, "cpu_cfs_period": `"100ms"`, "memory_swap": `["1GiB"]`,
		"memory_swappiness": `"low"`, "pids_limit": `"few"`, "shm_size": `["64MiB"]`, "runtime": `["runc"]`,
	} {
		t.Run(option, func(t *testing.T) {
			_, err := readTask(t, &Config{Runtime: ociruntime.Runc}, option+" = "+value)
			must.ErrorContains(t, err, `"`+option+`"`)
		})
	}
}

func TestProcessOptions_Schema(t *testing.T) {
	plugin := &Config{Runtime: ociruntime.Runc, AllowRuntimes: []string{"crun"}}
	got, err := readTask(t, plugin, `
		group_add         = ["extra", "4321"]
		hostname          = "web-1.example.org"
		init              = true
		ulimit            { nofile = "1024:4096" }
		sysctl            = { "kernel.msgmax" = 8192 }
		oom_score_adj     = 500
		readonly_rootfs   = true
		tty               = true
		interactive       = true
		labels            { "com.example/a" = "b" }
		annotations       = [{ "com.example/c" = "d" }]
		cpu_hard_limit    = true
		cpu_cfs_period    = 50000
		memory_swap       = "1GiB"
		memory_swappiness = 0
		pids_limit        = 64
		shm_size          = 134217728
		runtime           = "crun"`)
	must.NoError(t, err)
	zero := int64(0)
	got.Mounts, got.MountsList = nil, nil // blocks of which there are none
	must.Eq(t, &TaskConfig{Image: "busybox", GroupAdd: []string{"extra", "4321"}, Hostname: "web-1.example.org", Init: true,
		Ulimit: Pairs{{"nofile": "1024:4096"}}, Sysctl: Pairs{{"kernel.msgmax": "8192"}}, OOMScoreAdj: 500,
		ReadonlyRootfs: true, TTY: true, Interactive: true, Labels: Pairs{{"com.example/a": "b"}},
		Annotations: Pairs{{"com.example/c": "d"}}, CPUHardLimit: true, CPUCFSPeriod: 50000, MemorySwap: "1GiB",
		MemorySwappiness: &zero, PidsLimit: 64, ShmSize: "134217728", Runtime: "crun"}, got)
}

func TestWithReadonlyRootfs(t *testing.T) {
	must.True(t, apply(t, withReadonlyRootfs(true)).Root.Readonly)
	must.False(t, apply(t, withReadonlyRootfs(false)).Root.Readonly)
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
