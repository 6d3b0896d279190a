package wrapper_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// steering is an environment by which an image or a job may try to steer what runs as root on the host.
func steering(evil string) []string {
	return []string{
		"LD_PRELOAD=" + evil + "/preload.so", "LD_LIBRARY_PATH=" + evil, "LD_AUDIT=" + evil + "/audit.so",
		"PATH=" + evil + ":/bin", "BASH_ENV=" + evil + "/profile", "ENV=" + evil + "/profile",
		"GODEBUG=gctrace=1,inittrace=1", "GOTRACEBACK=crash", "GOCOVERDIR=" + evil,
		"TRANCHE_CONFIG=" + evil + "/config.toml", "TRANCHE_REGIONS=" + evil, "TRANCHE_STATE_DIR=" + evil,
		"_LIBCONTAINER_INITPIPE=3", "_LIBCONTAINER_STATEDIR=" + evil, "NOTIFY_SOCKET=" + evil + "/socket",
		"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_ROOT=" + evil, "NVIDIA_CONFIG_FILE=" + evil + "/config.toml",
		"CUDA_VISIBLE_DEVICES=0", "DOCKER_CONFIG=" + evil, "TMPDIR=" + evil, "HOME=" + evil,
	}
}

// CVE-2025-23266. What the image or the job puts into the environment reaches no hook: neither ours, nor those of a CDI
// specification or of somebody else that state no environment of their own. All have the one that we give them.
func TestHostileEnvironment_HooksGetTheirOwn(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			self, err := os.Executable()
			must.NoError(t, err)
			n.cfg.HookPath = n.path("tranche-hook-that-records")
			must.NoError(t, os.Symlink(self, n.cfg.HookPath))
			n.configure(next)
			records := filepath.Dir(n.cfg.StateDir)
			hook := func(stage, whose string) string {
				return `{"path": "` + self + `", "args": ["hook-that-records", "` + records + "/environ-" + whose + "-" + stage + `"]`
			}
			root := n.cfg.DriverRoot
			runtimetest.WriteCDISpec(t, filepath.Join(root, "etc/cdi/gpus.json"), root, func(spec string) string {
				return strings.Replace(spec, `"mounts": [`, `"hooks": [`+
					hook("createContainer", "cdi")+`, "hookName": "createContainer"},`+
					hook("createRuntime", "cdi")+`, "hookName": "createRuntime"}], "mounts": [`, 1)
			})
			_, env := n.reserve(runtimetest.GPU0, "slice-000")
			evil := n.path("evil")
			bundle := n.image(n.bundle("b", "busybox env", append(steering(evil), env)...))
			n.respec(bundle, func(spec map[string]any) {
				spec["hooks"] = json.RawMessage(`{"createContainer": [` + hook("createContainer", "foreign") + `}]}`)
			})
			output := n.must(n.oci("run", "--bundle", bundle, "c1"))
			must.StrContains(t, output, "LD_PRELOAD="+evil, must.Sprint("the container's own is the job's to choose"))

			found, err := filepath.Glob(records + "/environ-*")
			must.NoError(t, err)
			var names []string
			for _, record := range found {
				name := strings.TrimPrefix(filepath.Base(record), "environ-")
				names = append(names, name)
				want := "PATH=/usr/sbin:/usr/bin:/sbin:/bin\x00"
				if strings.HasPrefix(name, "ours-") {
					want += "GOMAXPROCS=1\x00"
				}
				must.Eq(t, want, readFile(t, record), must.Sprint(record))
			}
			must.SliceContainsAll(t, names, []string{
				"ours-prestart", "ours-createContainer", "ours-poststop", "cdi-createContainer", "cdi-createRuntime", "foreign-createContainer",
			})
		})
	}
}

// A job's TRANCHE_CONFIG names a file of the job's. The configuration is that of whoever calls tranche-runtime, and that
// is the container manager.
func TestHostileEnvironment_ConfigIsTheCallers(t *testing.T) {
	next, record := recorder(t)
	n := newNode(t, next)
	_, env := n.reserve(runtimetest.GPU0, "slice-000")
	evil := n.path("evil")
	runtimetest.WriteFile(t, filepath.Join(evil, "config.toml"), "runtime = \"/bin/false\"\nstate_dir = \""+evil+"\"\n")
	bundle := n.bundle("b", "true", append(steering(evil), env)...)
	_ = n.runtime("create", "--bundle", bundle, "c1").Run()
	cmdline, environ := record()
	must.StrContains(t, cmdline, next)
	must.StrNotContains(t, environ, evil)
	spec := n.spec(bundle)
	must.StrNotContains(t, strings.Join(spec.Hooks.Poststop[0].Args, " "), evil)
	entries, err := os.ReadDir(evil)
	must.NoError(t, err)
	must.Len(t, 1, entries)
}

// The bundle is the current directory of those who call runtimes by `cd BUNDLE`. A PATH that has it must not make a
// program in there the next runtime.
func TestHostileEnvironment_NextRuntimeIsNotInTheBundle(t *testing.T) {
	n := newNode(t, "next-runtime")
	bundle := n.bundle("b", "true")
	runtimetest.WriteFile(t, filepath.Join(bundle, "next-runtime"), "#!/bin/sh\necho the bundle was in charge\n")
	for _, path := range []string{"PATH=.", "PATH=", "PATH=:/bin", "PATH=.:/bin"} {
		cmd := n.runtime("create", "c1")
		cmd.Dir = bundle
		cmd.Env = append(cmd.Env, path)
		var stdout strings.Builder
		cmd.Stdout = &stdout
		must.StrContains(t, n.fails(cmd), "next-runtime", must.Sprint(path))
		must.Eq(t, "", stdout.String(), must.Sprint(path))
	}
}
