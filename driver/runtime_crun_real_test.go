package driver

import (
	"fmt"
	"os"
	"testing"
	"time"

	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/userns"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// ownNull makes sure that /dev/null is the sandbox's, and not that of the machine that runs the test.
func ownNull(t *testing.T) {
	t.Helper()
	var null, zero unix.Stat_t
	must.NoError(t, unix.Stat(os.DevNull, &null))
	must.NoError(t, unix.Stat("/dev/zero", &zero))
	needs.That(t, os.Getenv("TRANCHE_SANDBOX") == "1" && null.Dev != zero.Dev,
		"a sandbox with a /dev/null of its own, which the test may give away")
}

// nullIsRoots asserts that /dev/null still belongs to root, for everybody to read and write.
func nullIsRoots(t *testing.T, after string) {
	t.Helper()
	var null unix.Stat_t
	must.NoError(t, unix.Stat(os.DevNull, &null))
	must.Eq(t, "0:0 20666", fmt.Sprintf("%d:%d %o", null.Uid, null.Gid, null.Mode), must.Sprint(after))
}

// An old crun starts no task and executes no command to which it would give the node's /dev/null.
func TestOption_RuntimeLeavesTheHostsNull(t *testing.T) {
	requireNode(t)
	ownNull(t)
	putCrunOnPath(t)
	for _, discard := range []bool{false, true} {
		d, _ := newLenientDriver(t, func(c *spec.Config) {
			c.Runtime, c.UsernsRange, c.DisableLogCollection = "crun", "231072:1310720", discard
		})
		for _, user := range []string{"", "app"} {
			for stdin, edit := range map[string]func(*spec.TaskConfig){
				"nothing":    func(*spec.TaskConfig) {},
				"a terminal": func(o *spec.TaskConfig) { o.TTY = true },
				"a pipe":     func(o *spec.TaskConfig) { o.Interactive = true },
			} {
				t.Run(fmt.Sprintf("user %q/%s/logs %v", user, stdin, !discard), func(t *testing.T) {
					d.in(t).leavesNull(user, !discard, edit)
					d.in(t).refusesUserns(user, edit)
				})
			}
		}
	}
}

func (d *testDriver) leavesNull(user string, logs bool, edit func(*spec.TaskConfig)) {
	d.t.Helper()
	cfg := d.newTask("touch /tmp/up; exec sleep 1000", logs, edit)
	cfg.User = user
	if !logs {
		cfg.StdoutPath, cfg.StderrPath = "", ""
	}
	d.start(cfg)
	nullIsRoots(d.t, "after the start")
	result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "readlink /proc/self/fd/0; cat; echo $?"}, time.Minute)
	if user == "" {
		must.NoError(d.t, err)
		must.Eq(d.t, "/dev/null\n0\n", string(result.Stdout), must.Sprint(string(result.Stderr)))
		code, out, _ := dtestutil.ExecTask(d.t, d.DriverHarness, cfg.ID, "tty", true, "")
		must.Zero(d.t, code)
		must.StrContains(d.t, out, "/dev/pts/")
	} else {
		must.ErrorContains(d.t, err, "a crun before 1.24")
		must.ErrorContains(d.t, err, "install crun 1.24 or newer")
	}
	nullIsRoots(d.t, "after a command")
	must.NoError(d.t, d.StopTask(cfg.ID, 0, "SIGKILL"))
	must.NoError(d.t, d.DestroyTask(cfg.ID, false))
	nullIsRoots(d.t, "after the end")
	d.nothingLeft(cfg)
}

func (d *testDriver) refusesUserns(user string, edit func(*spec.TaskConfig)) {
	d.t.Helper()
	cfg := d.failing(edit, func(o *spec.TaskConfig) { o.Userns = userns.Auto })
	cfg.User = user
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(d.t, err, `option userns_mode = "auto"`)
	must.ErrorContains(d.t, err, "a crun before 1.24")
	nullIsRoots(d.t, "after a start that was refused")
	d.nothingLeft(cfg)
}

// The task sees what it sees with every runtime: the container's own null device, at its end at once.
func TestOption_RuntimeNullInTheContainer(t *testing.T) {
	requireNode(t)
	ownNull(t)
	putCrunOnPath(t)
	for runtime, modes := range map[string][]string{"runc": {"host", userns.Auto}, "crun": {"host"}} {
		t.Run(runtime, func(t *testing.T) {
			d, _ := newLenientDriver(t, func(c *spec.Config) { c.Runtime, c.UsernsRange = runtime, "231072:1310720" })
			for _, userns := range modes {
				cfg := d.in(t).task("readlink /proc/$$/fd/0; stat -L -c %t:%T:%a /proc/$$/fd/0; cat; cat /dev/stdin; echo end",
					func(o *spec.TaskConfig) { o.Userns = userns })
				_, out := d.in(t).run(cfg, "end\n")
				must.Eq(t, "/dev/null\n1:3:666\nend\n", out)
			}
		})
	}
}
