package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime"
)

func TestTakesNull(t *testing.T) {
	for said, want := range map[string]bool{
		"crun version 1.8.1\ncommit: f8a09\n":              true,
		"crun version 0.21\n":                              true,
		"crun version 1.23.1\n":                            true,
		"crun version 1.24\n":                              false,
		"crun version 1.25.0.0.0.7-1f2a\n":                 false,
		"crun version 2.0\n":                               false,
		"runc version 1.1.5\ncommit: v1.1\n":               false,
		"wrapper of\ncrun version 1.8.1\n":                 false,
		"crun version 99999999999999999999.99999999999999": false,
		"": false,
	} {
		must.Eq(t, want, takesNull(said), must.Sprint(said))
	}
}

// fakeRuntime is a program that tells a version, and notes that it was asked.
func fakeRuntime(t *testing.T, file, version string) {
	t.Helper()
	must.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\necho asked >>"+file+".log; echo '"+version+"'\n"), 0o755))
}

func TestKeepNull(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "some-crun")
	d := New(t.Context(), testLogger())
	hook := filepath.Join(dir, "tranche-hook")
	touch(t, hook)
	d.grants = &grants{config: runtime.Config{HookPath: hook, RunDir: dir}}
	given := ociRuntime{name: "crun", shim: defaultRuntime, program: file}
	program := func() string {
		got, err := d.keepNull(t.Context(), given)
		must.NoError(t, err)
		return got.program
	}

	fakeRuntime(t, file, "crun version 1.24.1")
	must.Eq(t, file, program())
	must.Eq(t, file, program())
	asked, err := os.ReadFile(file + ".log")
	must.NoError(t, err)
	must.Eq(t, "asked\n", string(asked), must.Sprint("it is to be asked once"))

	fakeRuntime(t, file, "crun version 1.8.1, another file")
	linked := program()
	must.Eq(t, filepath.Join(dir, "own-null", file), linked)
	to, err := os.Readlink(linked)
	must.NoError(t, err)
	must.Eq(t, hook, to)

	must.NoError(t, os.Remove(hook))
	_, err = d.keepNull(t.Context(), given)
	must.ErrorContains(t, err, "a crun before 1.24")
	must.ErrorContains(t, err, "hook_path")

	// What is not asked: the shim's own runtime, and one that is not there.
	got, err := d.keepNull(t.Context(), ociRuntime{name: "runc", shim: defaultRuntime})
	must.NoError(t, err)
	must.Eq(t, "", got.program)
	must.NoError(t, os.Remove(file))
	_, err = d.keepNull(t.Context(), given)
	must.ErrorContains(t, err, file)
}

// ownNull makes sure that /dev/null is the sandbox's, and not that of the machine that runs the test.
func ownNull(t *testing.T) {
	t.Helper()
	var null, zero unix.Stat_t
	must.NoError(t, unix.Stat(os.DevNull, &null))
	must.NoError(t, unix.Stat("/dev/zero", &zero))
	if os.Getenv("TRANCHE_SANDBOX") == "1" && null.Dev != zero.Dev {
		return
	}
	const why = "this test may give /dev/null away, and has to run in a sandbox that has its own"
	if os.Getenv("TRANCHE_REQUIRE_ROOT") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// nullIsRoots asserts that /dev/null still belongs to root, for everybody to read and write.
func nullIsRoots(t *testing.T, after string) {
	t.Helper()
	var null unix.Stat_t
	must.NoError(t, unix.Stat(os.DevNull, &null))
	must.Eq(t, "0:0 20666", fmt.Sprintf("%d:%d %o", null.Uid, null.Gid, null.Mode), must.Sprint(after))
}

// Whatever a task has for its stdin, and whoever it is, crun gets nothing of the host's to give it: neither for the task
// nor for a command that is executed in it.
func TestOption_RuntimeLeavesTheHostsNull(t *testing.T) {
	requireNode(t)
	ownNull(t)
	putCrunOnPath(t)
	for _, discard := range []bool{false, true} {
		d, _ := newLenientDriver(t, func(c *Config) {
			c.Runtime, c.HookPath, c.UsernsRange = "crun", linkRole(t, roleHook), "231072:1310720"
			c.DisableLogCollection = discard
		})
		for _, userns := range []string{usernsHost, usernsAuto} {
			for _, user := range []string{"", "app"} {
				for stdin, edit := range map[string]func(*TaskConfig){
					"nothing":    func(*TaskConfig) {},
					"a terminal": func(o *TaskConfig) { o.TTY = true },
					"a pipe":     func(o *TaskConfig) { o.Interactive = true },
				} {
					t.Run(fmt.Sprintf("userns %s/user %q/%s/logs %v", userns, user, stdin, !discard), func(t *testing.T) {
						d.in(t).leavesNull(user, !discard, edit, func(o *TaskConfig) { o.Userns = userns })
					})
				}
			}
		}
	}
}

func (d *testDriver) leavesNull(user string, logs bool, edits ...func(*TaskConfig)) {
	d.t.Helper()
	cfg := d.newTask("touch /tmp/up; exec sleep 1000", logs, edits...)
	cfg.User = user
	if !logs {
		cfg.StdoutPath, cfg.StderrPath = "", ""
	}
	d.start(cfg)
	nullIsRoots(d.t, "after the start")
	result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "readlink /proc/self/fd/0; cat; echo $?"}, 10*time.Second)
	must.NoError(d.t, err)
	must.Eq(d.t, "/dev/null\n0\n", string(result.Stdout), must.Sprint(string(result.Stderr)))
	nullIsRoots(d.t, "after a check")
	code, out, _ := dtestutil.ExecTask(d.t, d.DriverHarness, cfg.ID, "tty", true, "")
	must.Zero(d.t, code)
	must.StrContains(d.t, out, "/dev/pts/")
	nullIsRoots(d.t, "after a command with a terminal")
	must.NoError(d.t, d.StopTask(cfg.ID, 0, "SIGKILL"))
	must.NoError(d.t, d.DestroyTask(cfg.ID, false))
	nullIsRoots(d.t, "after the end")
	d.nothingLeft(cfg)
}

// The task sees what it sees with every runtime: the container's own null device, at its end at once.
func TestOption_RuntimeOwnNullInTheContainer(t *testing.T) {
	requireNode(t)
	ownNull(t)
	putCrunOnPath(t)
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			d, _ := newLenientDriver(t, func(c *Config) {
				c.Runtime, c.HookPath, c.UsernsRange = runtime, linkRole(t, roleHook), "231072:1310720"
			})
			for _, userns := range []string{usernsHost, usernsAuto} {
				cfg := d.in(t).task("readlink /proc/$$/fd/0; stat -L -c %t:%T:%a /proc/$$/fd/0; cat; cat /dev/stdin; echo end",
					func(o *TaskConfig) { o.Userns = userns })
				_, out := d.in(t).run(cfg, "end\n")
				must.Eq(t, "/dev/null\n1:3:666\nend\n", out)
			}
		})
	}
}

// A node without the program that keeps /dev/null from it starts nothing with such a crun.
func TestOption_RuntimeNullWithoutTheHook(t *testing.T) {
	n := requireNode(t)
	ownNull(t)
	old := filepath.Join(t.TempDir(), "old-crun")
	fakeRuntime(t, old, "crun version 1.8.1")
	config := n.config()
	config.Runtime, config.HookPath = old, "/no/such/tranche-hook"
	d := newTestDriverWith(t, n, config)
	err := d.startFails()
	must.ErrorContains(t, err, "hook_path")
	must.ErrorContains(t, err, "or runc")
	asked, err := os.ReadFile(old + ".log")
	must.NoError(t, err)
	must.Eq(t, 1, strings.Count(string(asked), "asked"), must.Sprint("it was run for more than its version"))
}
