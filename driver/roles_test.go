package driver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/hooks"
)

// The test binary stands in for other programs under whose names tests link to it.
const (
	roleHook   = "tranche-hook"
	rolePlugin = "one-plugin-process"
)

// playRole does what the program does by whose name this one was started.
func playRole() (status int, ok bool) {
	switch filepath.Base(os.Args[0]) {
	case roleHook:
		return hooks.Main(os.Args, os.Stdin, os.Stderr), true
	case rolePlugin:
		return runPlugin(os.Args[1]), true
	}
	return 0, false
}

// linkRole makes a link to the test binary by which it plays the role.
func linkRole(t *testing.T, role string) string {
	t.Helper()
	binary, err := os.Executable()
	must.NoError(t, err)
	link := filepath.Join(t.TempDir(), role)
	must.NoError(t, os.Symlink(binary, link))
	return link
}

// pluginRun is what one plugin process does: it starts, stops and destroys one task, and kills itself at a failpoint.
type pluginRun struct {
	Config spec.Config
	Task   *drivers.TaskConfig
	// Options is the task's config block, which Task keeps to itself.
	Options spec.TaskConfig
	DiesAt  failpoint.Point
	// Handle is the file to which it writes the handle that StartTask returns, as Nomad would.
	Handle string
	// Lingers has it wait there for somebody else to kill it, and continue with its work meanwhile.
	Lingers bool
}

// runPlugin runs such a plugin process. It prints each failpoint on stdout.
func runPlugin(file string) int {
	var l pluginRun
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	if err == nil {
		err = l.run()
	}
	fmt.Fprintln(os.Stderr, "the plugin process was not killed:", err)
	return 1
}

func (l *pluginRun) run() error {
	d := New(context.Background(), hclog.New(&hclog.LoggerOptions{Level: hclog.Warn}))
	d.failpoints = func(p failpoint.Point) {
		fmt.Println(p)
		if p == l.DiesAt && !l.Lingers {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	var config []byte
	if err := base.MsgPackEncode(&config, l.Config); err != nil {
		return err
	}
	if err := d.SetConfig(&base.Config{PluginConfig: config, ApiVersion: drivers.ApiVersion010}); err != nil {
		return err
	}
	if err := l.Task.EncodeConcreteDriverConfig(l.Options); err != nil {
		return err
	}
	handle, _, err := d.StartTask(l.Task)
	if l.Lingers {
		select {}
	}
	if err != nil {
		return err
	}
	data, err := json.Marshal(handle)
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.Handle, data, 0o600); err != nil {
		return err
	}
	if err := d.StopTask(l.Task.ID, 100*time.Millisecond, "SIGTERM"); err != nil {
		return err
	}
	return d.DestroyTask(l.Task.ID, false)
}

// remains are what Nomad has after a plugin process has died.
type remains struct {
	// handle is nil if it ended in StartTask.
	handle *drivers.TaskHandle
	passed []failpoint.Point
}

// die runs a plugin process until it kills itself at the failpoint.
func (d *testDriver) die(config spec.Config, cfg *drivers.TaskConfig, at failpoint.Point) remains {
	l := pluginRun{Config: config, Task: cfg, DiesAt: at, Handle: filepath.Join(d.t.TempDir(), "handle.json")}
	cmd := d.newPluginRun(&l)
	out, err := cmd.Output()
	var left remains
	for line := range strings.Lines(string(out)) {
		left.passed = append(left.passed, failpoint.Point(strings.TrimSpace(line)))
	}
	must.Error(d.t, err, must.Sprint("the plugin was not killed"))
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	must.True(d.t, ok && status.Signaled() && status.Signal() == unix.SIGKILL,
		must.Sprintf("the point %q was not reached, only %q", at, left.passed))
	must.Eq(d.t, at, left.passed[len(left.passed)-1])
	if data, err := os.ReadFile(l.Handle); err == nil {
		left.handle = &drivers.TaskHandle{}
		must.NoError(d.t, json.Unmarshal(data, left.handle))
		left.handle.Config = cfg
	}
	return left
}

// newPluginRun is the process of the run.
func (d *testDriver) newPluginRun(l *pluginRun) *exec.Cmd {
	d.t.Helper()
	must.NoError(d.t, l.Task.DecodeDriverConfig(&l.Options))
	data, err := json.Marshal(l)
	must.NoError(d.t, err)
	file := filepath.Join(d.t.TempDir(), "run.json")
	must.NoError(d.t, os.WriteFile(file, data, 0o600))
	cmd := exec.Command(linkRole(d.t, rolePlugin), file)
	cmd.Stderr = os.Stderr
	return cmd
}

// dieAfter runs a plugin process that is killed some time after a failpoint, in the midst of what it does then.
func (d *testDriver) dieAfter(config spec.Config, cfg *drivers.TaskConfig, at failpoint.Point, delay time.Duration) {
	d.t.Helper()
	cmd := d.newPluginRun(&pluginRun{Config: config, Task: cfg, DiesAt: at, Lingers: true})
	out, err := cmd.StdoutPipe()
	must.NoError(d.t, err)
	must.NoError(d.t, cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan() && failpoint.Point(lines.Text()) != at; {
	}
	time.Sleep(delay)
	must.NoError(d.t, cmd.Process.Kill())
	must.Error(d.t, cmd.Wait())
}
