package hooks

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
	specfile "github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// newBundle is a container's bundle with nothing in its root file system.
func newBundle(t *testing.T) string {
	t.Helper()
	bundle := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(bundle, "rootfs"), 0o755))
	writeSpec(t, bundle, &specs.Spec{Root: &specs.Root{Path: "rootfs"}})
	return bundle
}

func writeSpec(t *testing.T, bundle string, spec *specs.Spec) {
	t.Helper()
	content, err := json.Marshal(spec)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), content, 0o644))
}

func TestPrestart_LooksAtTheImage(t *testing.T) {
	cases := []struct {
		name string
		lay  func(bundle, ours string) error
		want string // "" for a container that may start
	}{
		{"nothing of ours", func(string, string) error { return nil }, ""},
		{"a directory", func(_, ours string) error { return os.Mkdir(ours, 0o755) }, ""},
		{"a link to a directory", func(_, ours string) error {
			return errors.Join(os.Mkdir(filepath.Join(filepath.Dir(ours), "elsewhere"), 0o755), os.Symlink("elsewhere", ours))
		}, "no directory"},
		{"a link to nothing", func(_, ours string) error { return os.Symlink("/none", ours) }, "no directory"},
		{"a file", func(_, ours string) error { return os.WriteFile(ours, nil, 0o644) }, "no directory"},
		{"an absolute root", func(bundle, ours string) error {
			writeSpec(t, bundle, &specs.Spec{Root: &specs.Root{Path: filepath.Dir(ours)}})
			return os.Symlink("/none", ours)
		}, "no directory"},
		{"no spec", func(bundle, _ string) error { return os.Remove(filepath.Join(bundle, "config.json")) }, "no such file"},
		{"a spec that is a FIFO", func(bundle, _ string) error {
			config := filepath.Join(bundle, "config.json")
			return errors.Join(os.Remove(config), unix.Mkfifo(config, 0o644))
		}, "no regular file"},
		{"a spec without end", func(bundle, _ string) error {
			return os.Truncate(filepath.Join(bundle, "config.json"), specfile.MaxSpecBytes+1)
		}, "larger than 16 MiB"},
		{"no JSON", func(bundle, _ string) error {
			return os.WriteFile(filepath.Join(bundle, "config.json"), []byte("root"), 0o644)
		}, "no OCI spec"},
		{"a spec without a root", func(bundle, _ string) error {
			return os.WriteFile(filepath.Join(bundle, "config.json"), []byte("{}"), 0o644)
		}, "names no root file system"},
		{"no root file system", func(_, ours string) error { return os.Remove(filepath.Dir(ours)) }, "no such file"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			id := n.reserve("slice-000")
			must.NoError(t, tc.lay(n.bundle, filepath.Join(n.bundle, "rootfs", shadow.ContainerDir)))
			status, stderr := n.hook("prestart", "c1", initProcess(t).Process.Pid, id)
			if tc.want == "" {
				must.Zero(t, status, must.Sprint(stderr))
				must.Eq(t, "c1", n.bound(id))
				return
			}
			must.Eq(t, 1, status)
			must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprintf("not one line: %q", stderr))
			for _, want := range []string{"container c1", tc.want} {
				must.StrContains(t, stderr, want)
			}
			must.Nil(t, n.claim(id).Container)
		})
	}
	t.Run("no bundle", func(t *testing.T) {
		n := newNode(t)
		id := n.reserve("slice-000")
		n.bundle = ""
		status, stderr := n.hook("prestart", "c1", initProcess(t).Process.Pid, id)
		must.Eq(t, 1, status)
		must.StrContains(t, stderr, "names no bundle")
	})
}

// busybox is the whole image of the containers here. It has to be linked statically.
const busybox = "/bin/busybox"

// hookVariable in the environment makes the test binary tranche-hook, which OCI runtimes can then call.
const hookVariable = "TRANCHE_TEST_HOOK"

func TestMain(m *testing.M) {
	if os.Getenv(hookVariable) != "" {
		proctest.Exit(Main(os.Args, os.Stdin, os.Stderr))
	}
	os.Exit(m.Run())
}

// A link in the image leads the runtime's mounts elsewhere; the hook sees the link although they are made by then.
func TestContainer_ImageWithALink(t *testing.T) {
	for _, program := range []string{"runc", "crun"} {
		for name, lay := range map[string]func(ours string) error{
			"a link": func(ours string) error {
				return errors.Join(os.Mkdir(filepath.Join(filepath.Dir(ours), "elsewhere"), 0o755), os.Symlink("elsewhere", ours))
			},
			"a directory": func(ours string) error { return os.Mkdir(ours, 0o755) },
			"nothing":     func(string) error { return nil },
		} {
			t.Run(program+"/"+name, func(t *testing.T) {
				needs.Programs(t, "to start containers", program, busybox)
				n := newNode(t)
				id := n.reserve("slice-000")
				n.layContainer(id)
				must.NoError(t, lay(filepath.Join(n.bundle, "rootfs", shadow.ContainerDir)))
				output, err := n.runContainer(program)
				if name != "a link" {
					must.NoError(t, err, must.Sprint(output))
					must.Eq(t, "started", strings.TrimSpace(output))
					must.Eq(t, "c-"+strconv.Itoa(os.Getpid()), n.claim(id).Container.ID)
					return
				}
				must.Error(t, err)
				must.StrNotContains(t, output, "started")
				if program == "runc" { // crun does not pass on what a hook says
					must.StrContains(t, output, "no directory")
				}
				must.Nil(t, n.claim(id).Container)
			})
		}
	}
}

// layContainer makes the node's bundle one that can be run: its mount is made as for real ones.
func (n *node) layContainer(id string) {
	n.t.Helper()
	content, err := os.ReadFile(busybox)
	must.NoError(n.t, err)
	rootfs := filepath.Join(n.bundle, "rootfs")
	for _, dir := range []string{"bin", "dev", "proc"} {
		must.NoError(n.t, os.Mkdir(filepath.Join(rootfs, dir), 0o755))
	}
	must.NoError(n.t, os.WriteFile(filepath.Join(rootfs, busybox), content, 0o755))
	self, err := os.Executable()
	must.NoError(n.t, err)
	hook := func(role string) []specs.Hook {
		return []specs.Hook{{
			Path: self, Args: append([]string{"tranche-hook"}, n.args(role, id)...), Env: []string{hookVariable + "=1"},
		}}
	}
	writeSpec(n.t, n.bundle, &specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{Args: []string{busybox, "echo", "started"}, Cwd: "/"},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: shadow.ContainerDir, Type: "tmpfs", Source: "tmpfs", Options: []string{"ro", "mode=0755"}},
		},
		Hooks: &specs.Hooks{Prestart: hook("prestart"), Poststop: hook("poststop")}, //nolint:staticcheck // as in real specs
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
		}},
	})
}

// runContainer runs the container of the node's bundle to its end and returns all that was said.
func (n *node) runContainer(program string) (string, error) {
	id := "c-" + strconv.Itoa(os.Getpid())
	root := n.t.TempDir()
	command := func(args ...string) *exec.Cmd {
		args = append([]string{program, "--root", root}, args...)
		if program == "crun" {
			// crun refuses to run on cgroup v1 where v2 is mounted beside it, which is nothing of ours: hide it.
			args = append([]string{"unshare", "--mount", "sh", "-c",
				`if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && [ -e /sys/fs/cgroup/unified ]; then
					umount /sys/fs/cgroup/unified
				fi; exec "$0" "$@"`}, args...)
		}
		return exec.Command(args[0], args[1:]...)
	}
	defer func() { _ = command("delete", "--force", id).Run() }()
	output, err := command("run", "--bundle", n.bundle, id).CombinedOutput()
	return string(output), err
}
