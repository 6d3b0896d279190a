package wrapper_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// recorder makes a runtime that records the bytes of its command line and of its environment.
func recorder(t *testing.T) (path string, record func() (cmdline, environ string)) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "next-runtime")
	runtimetest.WriteFile(t, path, "#!/bin/sh\ncat /proc/$$/cmdline >"+dir+"/cmdline\ncat /proc/$$/environ >"+dir+"/environ\n"+
		"echo out; echo err >&2; exit 7\n")
	return path, func() (string, string) {
		return readFile(t, filepath.Join(dir, "cmdline")), readFile(t, filepath.Join(dir, "environ"))
	}
}

func zeroTerminated(all []string) string { return strings.Join(all, "\x00") + "\x00" }

func TestMain_HandsOnEverything(t *testing.T) {
	next, record := recorder(t)
	n := newNode(t, next)
	bundle := n.bundle("b", "true")
	for _, args := range [][]string{
		{},
		{"--version"},
		{"--root", "/run/x", "state", "c1"},
		{"--log", n.path("log"), "--log-format=json", "--systemd-cgroup", "create", "--bundle", bundle, "c1"},
		{"kill", "--all", "c1", "KILL"},
		{"exec", "c1", "sh", "-c", "printf 'a b\n'", "", "\xff\xfe", "--", "--bundle"},
		{"features"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			cmd := n.runtime(args...)
			cmd.Env = append(cmd.Env, "ODD=a\nb\xff", "ODD=twice", "EMPTY=")
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			must.True(t, errors.As(cmd.Run(), &exit))
			must.Eq(t, 7, exit.ExitCode())
			must.Eq(t, "out\n", stdout.String())
			must.Eq(t, "err\n", stderr.String())
			cmdline, environ := record()
			must.Eq(t, zeroTerminated(append([]string{"/bin/sh", next}, args...)), cmdline)
			must.Eq(t, zeroTerminated(cmd.Environ()), environ)
		})
	}
}

func TestMain_WithoutClaimsNothingChanges(t *testing.T) {
	next, _ := recorder(t)
	n := newNode(t, next)
	bundle := n.bundle("b", "true", "NVIDIA_VISIBLE_DEVICES=void", "TRANCHE=1")
	config := filepath.Join(bundle, "config.json")
	content := readFile(t, config)
	before, err := os.Stat(config)
	must.NoError(t, err)

	_ = n.runtime("create", "--bundle", bundle, "c1").Run()
	after, err := os.Stat(config)
	must.NoError(t, err)
	must.True(t, os.SameFile(before, after))
	must.Eq(t, content, readFile(t, config))
	_, err = os.Stat(n.cfg.StateDir)
	must.ErrorIs(t, err, os.ErrNotExist, must.Sprint("the ledger was made without need"))
}

func TestMain_EditsTheSpec(t *testing.T) {
	for _, where := range []string{"--bundle", "current directory"} {
		t.Run(where, func(t *testing.T) {
			next, record := recorder(t)
			n := newNode(t, next)
			first, firstEnv := n.reserve(runtimetest.GPU0, "slice-000")
			second, secondEnv := n.reserve(runtimetest.GPU1, "slice-000")
			bundle := n.bundle("b", "true", firstEnv, secondEnv, "A=1")

			args := []string{"--root", "/r", "create", "--bundle", bundle, "c1"}
			if where == "current directory" {
				args = []string{"run", "c1"}
			}
			cmd := n.runtime(args...)
			cmd.Dir = bundle
			_ = cmd.Run()
			cmdline, _ := record()
			must.Eq(t, zeroTerminated(append([]string{"/bin/sh", next}, args...)), cmdline)

			content := readFile(t, filepath.Join(bundle, "config.json"))
			var spec specs.Spec
			must.NoError(t, json.Unmarshal([]byte(content), &spec))
			must.Eq(t, []string{"PATH=/bin", "HOME=/", "A=1", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)
			must.Len(t, 3, spec.Linux.Devices)
			for _, c := range []string{first.ID, second.ID} {
				must.StrContains(t, content, "/.tranche/claims/"+c+"/usage")
				must.SliceContains(t, spec.Hooks.Prestart[0].Args, c) //nolint:staticcheck // see bindingHooks
			}
			must.StrContains(t, content, `"future":{"kept":true}`)
			for _, env := range []string{firstEnv, secondEnv} {
				_, token, _ := strings.Cut(env, "=")
				must.StrNotContains(t, content, token)
			}
		})
	}
}

// A mount of the driver's keeps what its source is mounted with, which a user namespace can't take away.
func TestMain_UserNamespace(t *testing.T) {
	needs.Root(t, "to mount")
	sockets := t.TempDir()
	must.NoError(t, unix.Mount("tmpfs", sockets, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(sockets, unix.MNT_DETACH)) })
	next, _ := recorder(t)
	n := newNode(t, next)
	root := n.cfg.DriverRoot
	runtimetest.WriteCDISpec(t, filepath.Join(root, "etc/cdi/gpus.json"), root, func(spec string) string {
		return strings.Replace(spec, `"mounts": [`, `"mounts": [{"hostPath": "`+sockets+
			`", "containerPath": "/run/driver", "options": ["rw", "nosuid", "nodev", "bind"]}, `, 1)
	})
	_, env := n.reserve(runtimetest.GPU0, "slice-000")
	bundle := n.bundle("b", "true", env)
	n.edit(bundle, func(spec map[string]any) {
		linux := spec["linux"].(map[string]any)
		linux["namespaces"] = append(linux["namespaces"].([]any), map[string]any{"type": "user"})
	})
	_ = n.runtime("create", "--bundle", bundle, "c1").Run()
	var spec specs.Spec
	must.NoError(t, json.Unmarshal([]byte(readFile(t, filepath.Join(bundle, "config.json"))), &spec))
	at := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/run/driver" })
	must.SliceContains(t, spec.Mounts[at].Options, "noexec")
}

func TestMain_HostMemory(t *testing.T) {
	next, _ := recorder(t)
	n := newNode(t, next)
	made, env := n.reserve(runtimetest.GPU0, "slice-000")
	const asks = runtime.GPUHostMemoryEnv + "=4GiB"
	hostMemory := func() uint64 {
		header, err := region.ReadHeader(filepath.Join(n.cfg.RunDir, "claims", made.ID))
		must.NoError(t, err)
		return header.SpillBytes
	}

	stderr := n.fails(n.runtime("create", "--bundle", n.bundle("refused", "true", env, asks), "c1"))
	must.StrContains(t, stderr, `environment variable TRANCHE_GPU_HOST_MEMORY = "4GiB"`)
	must.StrContains(t, stderr, "gpu_host_memory_max")
	must.Zero(t, hostMemory())

	n.hostMemoryMax = "4GiB"
	n.configure(next)
	_ = n.runtime("create", "--bundle", n.bundle("allowed", "true", env, asks), "c2").Run()
	must.Eq(t, 4<<30, hostMemory())

	// The next container of the claim does not ask.
	_ = n.runtime("create", "--bundle", n.bundle("plain", "true", env), "c3").Run()
	must.Zero(t, hostMemory())

	// One without claims is nobody's business.
	next, record := recorder(t)
	n.hostMemoryMax = ""
	n.configure(next)
	_ = n.runtime("create", "--bundle", n.bundle("none", "true", asks), "c4").Run()
	_, environ := record()
	must.NotEq(t, "", environ)
}

// A container of Nomad's states its part of the GPU's time by a variable, within what the slices are worth or the node allows.
func TestMain_Compute(t *testing.T) {
	next, _ := recorder(t)
	n := newNode(t, next)
	made, token, err := n.ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: runtimetest.GPU0, Name: "NVIDIA H200"}, Slices: []string{runtimetest.GPU0 + "/slice-000"}, LimitBytes: 1 << 30,
		Owner: claim.OwnerNomad, Compute: &claim.Compute{Share: 200, Max: 1000, Class: claim.ClassNormal},
	})
	must.NoError(t, err)
	env := token.EnvName() + "=" + token.Reveal()
	share := func() int {
		found, err := n.ledger.Lookup(t.Context(), token)
		must.NoError(t, err)
		return found.Compute.Share
	}
	for stated, want := range map[string]string{
		"share=30":      "environment variable TRANCHE_GPU_COMPUTE: share: this node allows claim " + made.ID + " at most 20% of GPU 0, got 30%",
		"priority=high": "gpu_compute_high_priority",
		"50%":           `TRANCHE_GPU_COMPUTE: "50%" is none of share, max and priority`,
	} {
		stderr := n.fails(n.runtime("create", "--bundle", n.bundle("refused", "true", env, "TRANCHE_GPU_COMPUTE="+stated), "c1"))
		must.StrContains(t, stderr, want)
		must.Eq(t, 200, share())
	}
	_ = n.runtime("create", "--bundle", n.bundle("allowed", "true", env, "TRANCHE_GPU_COMPUTE=share=10,max=50"), "c2").Run()
	must.Eq(t, 100, share())

	stderr := n.fails(n.runtime("create", "--bundle", n.bundle("alone", "true", "TRANCHE_GPU_COMPUTE=share=10"), "c3"))
	must.StrContains(t, stderr, "TRANCHE_GPU_COMPUTE states a part of a GPU's time without an amount of memory")
	_, other := n.reserve(runtimetest.GPU0, "slice-001")
	stderr = n.fails(n.runtime("create", "--bundle", n.bundle("not-governed", "true", other, "TRANCHE_GPU_COMPUTE=share=10"), "c4"))
	must.StrContains(t, stderr, `set compute = "shares" in the device plugin's configuration`)
}

func TestMain_Errors(t *testing.T) {
	token := strings.Repeat("5ec2e7", 6)[:32]
	cases := []struct {
		name    string
		prepare func(t *testing.T, n *node) (bundle string)
		want    []string
	}{{
		name: "a token that nobody gave out",
		prepare: func(_ *testing.T, n *node) string {
			return n.bundle("b", "true", "TRANCHE_CLAIM_"+idOf(token)+"="+token)
		},
		want: []string{"TRANCHE_CLAIM_" + idOf(token), "no claim in the ledger"},
	}, {
		name: "a token under another claim's name",
		prepare: func(_ *testing.T, n *node) string {
			return n.bundle("b", "true", "TRANCHE_CLAIM_00000000="+token)
		},
		want: []string{"TRANCHE_CLAIM_00000000"},
	}, {
		name: "no OCI spec in the bundle",
		prepare: func(t *testing.T, n *node) string {
			runtimetest.WriteFile(t, filepath.Join(n.path("no-spec"), "config.json"), "process: {}")
			return n.path("no-spec")
		},
		want: []string{"no-spec/config.json", "no OCI spec"},
	}, {
		name: "a driver root without a driver",
		prepare: func(t *testing.T, n *node) string {
			must.NoError(t, os.RemoveAll(n.cfg.DriverRoot))
			_, env := n.reserve(runtimetest.GPU0, "slice-000")
			return n.bundle("b", "true", env)
		},
		want: []string{"libnvidia-ml.so.1", "driver_root"},
	}, {
		name: "no next runtime",
		prepare: func(_ *testing.T, n *node) string {
			n.configure("/nonexistent/runc")
			return n.bundle("b", "true")
		},
		want: []string{"/nonexistent/runc", "runtime"},
	}, {
		name: "itself as the next runtime",
		prepare: func(_ *testing.T, n *node) string {
			n.configure(n.path("tranche-runtime"))
			return n.bundle("b", "true")
		},
		want: []string{"tranche-runtime itself"},
	}}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			next, _ := recorder(t)
			n := newNode(t, next)
			bundle := tc.prepare(t, n)
			log := n.path("log.json")
			stderr := n.fails(n.runtime("--log", log, "--log-format", "json", "create", "--bundle", bundle, "c1"))

			var entry struct{ Level, Msg, Time string }
			must.NoError(t, json.Unmarshal([]byte(readFile(t, log)), &entry))
			must.Eq(t, "error", entry.Level)
			for _, want := range tc.want {
				must.StrContains(t, entry.Msg, want)
			}
			must.StrContains(t, stderr, "tranche-runtime: "+entry.Msg)
			must.StrNotContains(t, stderr, token)
		})
	}
}

// A mistake in the configuration stops new containers with a GPU alone.
func TestMain_WrongConfiguration(t *testing.T) {
	for name, mistake := range map[string]string{
		"a misspelled table": "[idel]\npolicy = \"off\"\n", "a misspelled setting": "shadowdir = \"/x\"\n", "no TOML": "x = [\n",
	} {
		t.Run(name, func(t *testing.T) {
			next, record := recorder(t)
			n := newNode(t, next)
			claimed, token := n.reserve(runtimetest.GPU0, "slice-000")
			must.NoError(t, n.ledger.Bind(t.Context(), claimed.ID, claim.Container{ID: "running", Runtime: "runc", InitPID: os.Getpid()}))
			other, otherToken := n.reserve(runtimetest.GPU0, "slice-001")
			file := n.path("config.toml")
			runtimetest.WriteFile(t, file, readFile(t, file)+mistake)
			log := n.path("log.json")
			started := func(args ...string) {
				t.Helper()
				args = append([]string{"--log", log, "--log-format", "json"}, args...)
				var exit *exec.ExitError
				must.True(t, errors.As(n.runtime(args...).Run(), &exit))
				must.Eq(t, 7, exit.ExitCode())
				cmdline, _ := record()
				must.Eq(t, zeroTerminated(append([]string{"/bin/sh", next}, args...)), cmdline)
			}

			started("create", "--bundle", n.bundle("plain", "true"), "c1")
			must.StrContains(t, readFile(t, log), `"level":"warning"`)
			must.StrContains(t, readFile(t, log), file)
			for _, args := range []string{"state running", "kill running KILL", "delete --force running"} {
				started(strings.Fields(args)...)
			}
			process := n.path("process.json")
			runtimetest.WriteFile(t, process, `{"cwd": "/", "env": ["A=1", "`+token+`"]}`)
			started("exec", "--process", process, "running")
			must.StrNotContains(t, readFile(t, process), token)
			runtimetest.WriteFile(t, process, `{"cwd": "/", "env": ["A=1"]}`)
			started("exec", "--process", process, "running")
			must.StrContains(t, readFile(t, process), "NVIDIA_VISIBLE_DEVICES=void", must.Sprint("the ledger was not read"))

			for _, env := range []string{otherToken, "TRANCHE_GPU_MEMORY=1GiB", "NVIDIA_VISIBLE_DEVICES=all"} {
				stderr := n.fails(n.runtime("create", "--bundle", n.bundle("gpu", "true", env), "c2"))
				must.StrContains(t, stderr, "read the configuration "+file)
				must.StrNotContains(t, stderr, otherToken)
			}
			must.Nil(t, n.holder(other.ID))
		})
	}
}

func TestMain_ErrorInTextLog(t *testing.T) {
	n := newNode(t, "/nonexistent/runc")
	log := n.path("log")
	runtimetest.WriteFile(t, log, "an earlier line\n")
	n.fails(n.runtime("--log="+log, "state", "c1"))
	content := readFile(t, log)
	must.StrHasPrefix(t, "an earlier line\ntime=", content)
	must.StrContains(t, content, " level=error msg=\"find the next OCI runtime")
}
