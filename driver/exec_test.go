package driver

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/spec"
)

func TestExec_NomadConformance(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	config.AllowHostNamespaces = []string{"cgroup"}
	d := newTestDriverWith(t, n, config)
	// The tests look at the names of the task's cgroups from within.
	cfg := d.task("sleep 600", func(o *spec.TaskConfig) { o.CgroupNS = "host" })
	d.start(cfg)
	dtestutil.ExecTaskStreamingConformanceTests(t, d.DriverHarness, cfg.ID)
}

func TestExecTask(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("sleep 600")
	cfg.Env = map[string]string{"GREETING": "hello"}
	d.start(cfg)

	t.Run("output and exit code", func(t *testing.T) {
		result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "echo $GREETING; echo no >&2; exit 5"}, time.Minute)
		must.NoError(t, err)
		must.Eq(t, "hello\n", string(result.Stdout))
		must.Eq(t, "no\n", string(result.Stderr))
		must.Eq(t, 5, result.ExitResult.ExitCode)
	})
	t.Run("timeout", func(t *testing.T) {
		_, err := d.ExecTask(cfg.ID, []string{"/bin/sleep", "601"}, time.Second)
		must.ErrorContains(t, err, "timeout of 1s")
		eventually(t, "the end of the process", func() bool {
			result, err := d.ExecTask(cfg.ID, []string{"/bin/ps"}, time.Minute)
			return err == nil && !strings.Contains(string(result.Stdout), "sleep 601")
		})
	})
	t.Run("nothing is left of it", func(t *testing.T) {
		pipes, err := os.ReadDir(filepath.Join(d.driver.runDir, "exec"))
		must.NoError(t, err)
		must.SliceEmpty(t, pipes)
	})
	t.Run("the end of stdin reaches it", func(t *testing.T) {
		code, stdout, _ := dtestutil.ExecTask(t, d.DriverHarness, cfg.ID, "cat; echo done", false, "hello ")
		must.Zero(t, code)
		must.Eq(t, "hello done\n", stdout)
	})
	t.Run("a command that is not there", func(t *testing.T) {
		_, err := d.ExecTask(cfg.ID, []string{"/no/such"}, time.Minute)
		must.ErrorContains(t, err, `execute "/no/such" in the task`)
	})
	t.Run("a command that cannot be executed, for nomad alloc exec", func(t *testing.T) {
		for command, want := range map[string]int{"/no/such": 127, "nosuch": 127, "/etc/passwd": 126} {
			for _, tty := range []bool{false, true} {
				var stderr bytes.Buffer
				result, err := d.driver.ExecTaskStreaming(d.ctx, cfg.ID, &drivers.ExecOptions{Command: []string{command}, Tty: tty,
					Stdin: io.NopCloser(strings.NewReader("")), Stdout: writeCloser{io.Discard}, Stderr: writeCloser{&stderr}})
				must.NoError(t, err)
				must.Eq(t, want, result.ExitCode)
				must.StrContains(t, stderr.String(), fmt.Sprintf("execute %q in the task: ", command))
			}
		}
	})
	t.Run("no such task", func(t *testing.T) {
		_, err := d.ExecTask("unknown", []string{"/bin/true"}, time.Second)
		must.ErrorContains(t, err, drivers.ErrTaskNotFound.Error())
	})
	t.Run("after the end", func(t *testing.T) {
		must.NoError(t, d.StopTask(cfg.ID, 0, "SIGKILL"))
		_, err := d.ExecTask(cfg.ID, []string{"/bin/true"}, time.Second)
		must.ErrorContains(t, err, "has ended")
	})
}

// A check that writes without end gives no more than the end of it.
func TestExecTask_MuchOutput(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("sleep 600")
	d.start(cfg)
	const megabytes = "head -c 16000000 /dev/zero | tr '\\0' x"
	result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", megabytes + "; " + megabytes + " >&2; echo out; echo err >&2"},
		time.Minute)
	must.NoError(t, err)
	for end, output := range map[string][]byte{"xout\n": result.Stdout, "xerr\n": result.Stderr} {
		must.Eq(t, 64<<10, len(output))
		must.True(t, strings.HasSuffix(string(output), end))
	}
}

// writeCloser is a writer for what needs no closing.
type writeCloser struct{ io.Writer }

// Close implements io.Closer.
func (writeCloser) Close() error { return nil }
